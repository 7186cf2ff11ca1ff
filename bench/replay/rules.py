"""The rules that can be replayed: Reprise's drafters with the server's gate, and rules of other projects."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from bench.cost_curves import Curve
from bench.replay.lookups import FixedLookup, WipedTableLookup
from bench.replay.players import FixedPlayer, Player, ServerPlayer
from bench.replay.policies import LIMIT, Choose, everything, in_hindsight, two_widths
from config.settings import Settings
from drafters.assembly import make_drafters
from drafters.base import Drafter
from drafters.suffix import SuffixDrafter
from engine.request import DraftType
from engine.speculative.gate import LOOKUPS


@dataclass(frozen=True, slots=True)
class Setup:
    """The setup that all rules of one run share. line_ends: tokens that end a line."""

    settings: Settings
    line_ends: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for drafting.

    title: the rule in words. used_by: where it is known to be in use; "" if nowhere.
    draft_type: with the server's gate; None: drafts of at most `limit` tokens, without a gate, of which
    `choose` verifies some. drafter: makes the drafter; None: those of the draft type.
    is_warm: whether drafters keep what they learned from one chat to the next, in file order.
    """

    name: str
    title: str
    used_by: str = ""
    draft_type: DraftType | None = None
    drafter: Callable[[], Drafter] | None = None
    limit: int = LIMIT
    choose: Choose = everything
    is_warm: bool = False

    @property
    def is_hindsight(self) -> bool:
        """Whether it knows the answer, and so is only an upper bound."""
        return self.choose is in_hindsight

    @property
    def depends_on_costs(self) -> bool:
        """Whether step costs decide how much is drafted; if not, one replay serves all curves."""
        return self.draft_type is not None or self.is_hindsight

    def player(self, setup: Setup, curve: Curve) -> Player:
        """Return a fresh player."""
        if self.draft_type is None:
            assert self.drafter is not None, "a rule without a draft type has a drafter"
            return FixedPlayer(self.drafter(), self.choose, self.limit, curve)
        settings = replace(setup.settings, draft_type=self.draft_type)
        # Only those that the type uses, so that only their time is measured.
        made = make_drafters(settings, "replay")
        drafters = [self.drafter()] if self.drafter else [made[one] for one in LOOKUPS[self.draft_type]]
        return ServerPlayer(drafters, settings, curve, setup.line_ends)


_ALL = (
    Rule("auto", "suffix, then ngram-mod; gate", "reprise serve, the default", "auto"),
    Rule("suffix", "longest match, cursor, changes; gate", "reprise serve --draft-type suffix", "suffix"),
    Rule("ngram-simple", "longest match of 16..2, newest; gate", "reprise serve --draft-type ngram-simple",
         "ngram-simple"),
    Rule("ngram-mod", "shared table, n = 16; gate", "reprise serve --draft-type ngram-mod", "ngram-mod"),
    Rule("two-widths", "longest match of 16..2; 31 tokens if 12 or more matched, else 2",
         drafter=lambda: FixedLookup(16, 2), choose=two_widths),
    Rule("newest-2", "newest match of 2, 10 tokens", "prompt lookup in several servers",
         drafter=lambda: FixedLookup(2, 2), limit=10),
    Rule("newest-3", "newest match of 3, 10 tokens", "prompt lookup in several servers",
         drafter=lambda: FixedLookup(3, 3), limit=10),
    Rule("earliest-2", "earliest match of 2, else 1; 10 tokens", "transformers, prompt_lookup_num_tokens=10",
         drafter=lambda: FixedLookup(2, 1, newest=False), limit=10),
    Rule("longest-5", "longest match of 5..2, earliest position, 5 tokens",
         "vLLM's ngram, prompt_lookup_min=2, _max=5", drafter=lambda: FixedLookup(5, 2, newest=False),
         limit=5),
    Rule("ngram-12", "newest match of 12, 12 to 48 tokens", "llama.cpp's ngram-simple by default",
         drafter=lambda: FixedLookup(12, 12, is_long=True), limit=48),
    Rule("ngram-mod-24", "shared table, n = 24, 48 to 64 tokens",
         "llama.cpp's ngram-mod as its documentation starts it", drafter=WipedTableLookup, limit=64),
    Rule("hindsight", "suffix with the best width of every draft, in hindsight", drafter=SuffixDrafter,
         choose=in_hindsight),
    Rule("hindsight-longest", "longest match of 16..2 with the best width of every draft, in hindsight",
         drafter=lambda: FixedLookup(16, 2), choose=in_hindsight),
    Rule("suffix-matches", "suffix without its cursor; gate", "", "suffix",
         lambda: SuffixDrafter(0, use_cursor=False)),
    Rule("suffix-cursor", "suffix with its cursor, without changes; gate", "", "suffix",
         lambda: SuffixDrafter(0, learn_changes=False)),
    Rule("suffix-changes", "suffix with cursor and changes, no history; gate", "", "suffix",
         lambda: SuffixDrafter(0)),
    Rule("newest-4-2", "newest match of 4..2, 4 tokens", drafter=lambda: FixedLookup(4, 2), limit=4),
)  # fmt: skip

RULES: dict[str, Rule] = {rule.name: rule for rule in _ALL} | {
    (name := f"{rule.name}-warm"): replace(
        rule, name=name, title=f"{rule.title}; keeps what it learned", is_warm=True
    )
    for rule in _ALL
    if rule.name in ("auto", "suffix", "ngram-mod", "ngram-mod-24", "hindsight")
}
"""Name -> rule."""

COMPARED = (
    "auto", "auto-warm", "suffix", "ngram-simple", "ngram-mod", "two-widths", "newest-2", "newest-3",
    "earliest-2", "longest-5", "ngram-12", "ngram-mod-24", "ngram-mod-24-warm", "hindsight",
    "hindsight-longest",
)  # fmt: skip
"""The rules that are replayed by default."""
