"""The rules that can be replayed: Reprise's drafters with the server's gate, and rules of other projects."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.replay.policies import LIMIT, Choose, FixedPlayer, Player, Setup, everything, in_hindsight
from drafters.base import NO_DRAFT, Draft, Drafter, DraftQuery, SequenceStart
from drafters.suffix import SuffixDrafter
from engine.request import DraftType


class FixedLookup:
    """Drafts what followed a match of n tokens, for the largest n between longest and shortest that occurs.

    newest: whether the newest occurrence is used, or the earliest. The draft ends where the text ends.
    is_long: as llama.cpp's ngram-simple, which drafts nothing shorter than n tokens, and nothing in a text of
    n + limit + 2 tokens or fewer; the very first n-gram is never a match, nor is one that ends right before
    the last token, which is never drafted. Source: common/ngram-map.cpp, common_ngram_simple_draft.
    """

    name = "fixed"

    def __init__(self, longest: int, shortest: int, *, newest: bool = True, is_long: bool = False) -> None:
        self.sizes = range(longest, shortest - 1, -1)
        self.newest, self.is_long = newest, is_long
        # A character for each token, because Python searches a string faster than an index could be kept.
        self.texts: dict[int, str] = {}

    def open(self, start: SequenceStart) -> None:
        """Keep the prompt."""
        self.texts[start.seq] = "".join(map(chr, start.prompt))

    def propose(self, query: DraftQuery) -> Draft:
        """Draft what followed the match. The bucket is n."""
        text, margin = self.texts[query.seq], int(self.is_long)
        find = text.rfind if self.newest else text.find
        for size in self.sizes:
            # The end of the text, which would match itself, is left out.
            start = find(text[-size:], margin, len(text) - 1 - margin)
            if start >= 0:
                tokens = [*map(ord, text[start + size : len(text) - margin][: query.limit])]
                is_too_short = len(tokens) < size or len(text) < size + query.limit + 3
                return NO_DRAFT if self.is_long and is_too_short else Draft(tokens, self.name, size)
        return NO_DRAFT

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Keep the tokens."""
        self.texts[seq] += "".join(map(chr, tokens))

    def record_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        """Learn nothing."""

    def close(self, seq: int) -> None:
        """Forget the sequence."""
        del self.texts[seq]


def two_widths(draft: Draft, _costs: Sequence[float], _follows: Sequence[int]) -> int:
    """Choose a whole tile for matches of 12 tokens or more, else two tokens. A bucket is a match's length."""
    return min(len(draft.tokens), LIMIT if draft.bucket >= 12 else 2)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for drafting; the title says it in words, and who uses it.

    draft_type: with the server's gate; None: drafts of at most `limit` tokens, without a gate, of which
    `choose` verifies some. drafter: makes the drafter; None: those of the draft type.
    is_warm: whether drafters keep what they learned from one chat to the next, in file order.
    """

    name: str
    title: str
    draft_type: DraftType | None = None
    drafter: Callable[[], Drafter] | None = None
    limit: int = LIMIT
    choose: Choose = everything
    is_warm: bool = False

    def player(self, setup: Setup) -> Player:
        """Return a player that has seen nothing."""
        drafters = [self.drafter()] if self.drafter else []
        if self.draft_type:
            return setup.server(replace(setup.settings, draft_type=self.draft_type), drafters)
        return FixedPlayer(drafters[0], self.choose, self.limit, setup.curve)


_COLD = (
    Rule("auto", "suffix, then ngram-mod; gate (reprise serve by default)", "auto"),
    Rule("suffix", "longest match, cursor, changes; gate (reprise serve)", "suffix"),
    Rule("ngram-simple", "longest match of 16..2, newest; gate (reprise serve)", "ngram-simple"),
    Rule("ngram-mod", "shared table, n = 16; gate (reprise serve)", "ngram-mod"),
    Rule("two-widths", "longest match of 16..2; 31 tokens if 12 or more matched, else 2",
         drafter=lambda: FixedLookup(16, 2), choose=two_widths),
    Rule("newest-2", "newest match of 2, 10 tokens (several servers)",
         drafter=lambda: FixedLookup(2, 2), limit=10),
    Rule("newest-3", "newest match of 3, 10 tokens (several servers)",
         drafter=lambda: FixedLookup(3, 3), limit=10),
    Rule("newest-4-2", "newest match of 4..2, 4 tokens", drafter=lambda: FixedLookup(4, 2), limit=4),
    Rule("earliest-2", "earliest match of 2, else 1; 10 tokens (transformers, prompt_lookup_num_tokens=10)",
         drafter=lambda: FixedLookup(2, 1, newest=False), limit=10),
    Rule("longest-5", "longest match of 5..2, earliest place, 5 tokens (vLLM, prompt_lookup_min=2, _max=5)",
         drafter=lambda: FixedLookup(5, 2, newest=False), limit=5),
    Rule("ngram-12", "newest match of 12, 12 to 48 tokens (llama.cpp's ngram-simple by default)",
         drafter=lambda: FixedLookup(12, 12, is_long=True), limit=48),
    Rule("hindsight", "suffix, with the best width in hindsight", drafter=SuffixDrafter, choose=in_hindsight),
    Rule("hindsight-longest", "longest match of 16..2, with the best width in hindsight",
         drafter=lambda: FixedLookup(16, 2), choose=in_hindsight),
    Rule("suffix-matches", "suffix without its cursor; gate", "suffix",
         lambda: SuffixDrafter(0, use_cursor=False)),
    Rule("suffix-cursor", "suffix with its cursor, without changes; gate", "suffix",
         lambda: SuffixDrafter(0, learn_changes=False)),
    Rule("suffix-changes", "suffix with cursor and changes, no history; gate", "suffix",
         lambda: SuffixDrafter(0)),
)  # fmt: skip
_WARM = (
    replace(rule, name=f"{rule.name}-warm", title=f"{rule.title}; keeps what it learned", is_warm=True)
    for rule in _COLD
    if rule.name in ("auto", "suffix", "ngram-mod", "hindsight")
)

RULES = {rule.name: rule for rule in (*_COLD, *_WARM)}
COMPARED = (
    "auto", "auto-warm", "suffix", "ngram-simple", "ngram-mod", "two-widths", "newest-2", "newest-3",
    "earliest-2", "longest-5", "ngram-12", "hindsight", "hindsight-longest",
)  # fmt: skip
"""The rules that are replayed by default."""
