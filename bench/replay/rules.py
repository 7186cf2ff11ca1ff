"""The rules that can be replayed: Reprise's drafters with the server's gate, and rules of other projects."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from bench.cost_curves import FLAT, Curve
from bench.replay.lookups import FixedLookup, LongCopyLookup, WipedTableLookup
from bench.replay.players import FixedPlayer, Player, ServerPlayer
from bench.replay.policies import LIMIT, Choose, everything, in_hindsight, two_widths
from config.settings import Settings
from drafters.assembly import make_drafters
from drafters.base import Drafter
from drafters.suffix import SuffixDrafter
from engine.request import DraftType
from engine.speculative.gate import LOOKUPS

WARM = "-warm"
"""Suffix of a rule's name: its drafters keep what they learned from one pair to the next, in file order."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The setup that all rules of one run share. line_ends: tokens that end a line."""

    settings: Settings
    line_ends: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for drafting.

    title: the rule in words. used_by: where it is known to be in use; "" if nowhere.
    depends_on_costs: whether step costs decide how much is drafted; if not, one replay serves all curves.
    is_ordered: whether a pair's outcome depends on earlier pairs.
    is_warm: whether drafters keep what they learned from one chat to the next.
    is_hindsight: whether it knows the answer, and so is only an upper bound.
    """

    name: str
    title: str
    used_by: str
    make: Callable[[Setup, Curve], Player]
    depends_on_costs: bool = False
    is_ordered: bool = False
    is_warm: bool = False
    is_hindsight: bool = False

    def player(self, setup: Setup, curve: Curve | None) -> Player:
        """Return a fresh player. curve: None for a rule that does not depend on costs."""
        return self.make(setup, curve or FLAT)


def _served(
    name: str,
    title: str,
    used_by: str,
    draft_type: DraftType = "suffix",
    only: Callable[[], Drafter] | None = None,
) -> Rule:
    """Make a rule of a draft type with the server's gate. only: makes the drafter to use instead."""

    def make(setup: Setup, curve: Curve) -> Player:
        settings = replace(setup.settings, draft_type=draft_type)
        # Only those that the type uses, so that only their time is measured.
        made = make_drafters(settings, "replay")
        drafters = [only()] if only else [made[one] for one in LOOKUPS[draft_type]]
        return ServerPlayer(drafters, settings, curve, setup.line_ends)

    return Rule(name, title, used_by, make, depends_on_costs=True, is_ordered=True)


def _fixed(
    name: str,
    title: str,
    used_by: str,
    drafter: Callable[[], Drafter],
    limit: int,
    choose: Choose = everything,
) -> Rule:
    """Make a rule without a gate. limit: maximum draft length."""

    def make(_setup: Setup, curve: Curve) -> Player:
        return FixedPlayer(drafter(), choose, limit, curve)

    is_hindsight = choose is in_hindsight
    return Rule(name, title, used_by, make, depends_on_costs=is_hindsight, is_hindsight=is_hindsight)


_ALL = (
    _served("auto", "suffix, then ngram-mod; gate", "reprise serve, the default", "auto"),
    _served("suffix", "longest match, cursor, changes; gate", "reprise serve --draft-type suffix"),
    _served("ngram-simple", "longest match of 16..2, newest; gate",
            "reprise serve --draft-type ngram-simple", "ngram-simple"),
    _served("ngram-mod", "shared table, n = 16; gate", "reprise serve --draft-type ngram-mod",
            "ngram-mod"),
    _fixed("two-widths", "longest match of 16..2; 31 tokens if 12 or more matched, else 2", "",
            lambda: FixedLookup(16, 2), LIMIT, two_widths),
    _fixed("newest-2", "newest match of 2, 10 tokens", "prompt lookup in several servers",
            lambda: FixedLookup(2, 2), 10),
    _fixed("newest-3", "newest match of 3, 10 tokens", "prompt lookup in several servers",
            lambda: FixedLookup(3, 3), 10),
    _fixed("earliest-2", "earliest match of 2, else 1; 10 tokens",
            "transformers, prompt_lookup_num_tokens=10", lambda: FixedLookup(2, 1, newest=False),
            10),
    _fixed("longest-5", "longest match of 5..2, earliest position, 5 tokens",
            "vLLM's ngram, prompt_lookup_min=2, _max=5", lambda: FixedLookup(5, 2, newest=False),
            5),
    _fixed("ngram-12", "newest match of 12, 12 to 48 tokens", "llama.cpp's ngram-simple by default",
            LongCopyLookup, 48),
    _fixed("ngram-mod-24", "shared table, n = 24, 48 to 64 tokens",
            "llama.cpp's ngram-mod as its documentation starts it", WipedTableLookup, 64),
    _fixed("hindsight", "suffix with the best width of every draft, in hindsight", "", SuffixDrafter,
            LIMIT, in_hindsight),
    _fixed("hindsight-longest", "longest match of 16..2 with the best width of every draft, in hindsight",
            "", lambda: FixedLookup(16, 2), LIMIT, in_hindsight),
    _served("suffix-matches", "suffix without its cursor; gate", "",
            only=lambda: SuffixDrafter(0, use_cursor=False)),
    _served("suffix-cursor", "suffix with its cursor, without changes; gate", "",
            only=lambda: SuffixDrafter(0, learn_changes=False)),
    _served("suffix-changes", "suffix with cursor and changes, no history; gate", "",
            only=lambda: SuffixDrafter(0)),
    _fixed("newest-4-2", "newest match of 4..2, 4 tokens", "", lambda: FixedLookup(4, 2),
            4),
)  # fmt: skip

_SHARING = ("auto", "suffix", "ngram-mod", "ngram-mod-24", "hindsight")

RULES: dict[str, Rule] = {rule.name: rule for rule in _ALL} | {
    (name := f"{rule.name}{WARM}"): replace(
        rule, name=name, title=f"{rule.title}; keeps what it learned", is_ordered=True, is_warm=True
    )
    for rule in _ALL
    if rule.name in _SHARING
}
"""Name -> rule."""

COMPARED = (
    "auto", "auto-warm", "suffix", "ngram-simple", "ngram-mod", "two-widths", "newest-2", "newest-3",
    "earliest-2", "longest-5", "ngram-12", "ngram-mod-24", "ngram-mod-24-warm", "hindsight",
    "hindsight-longest",
)  # fmt: skip
"""The rules that are replayed by default."""
