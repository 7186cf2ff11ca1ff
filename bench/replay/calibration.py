"""Measure how often each bucket of the suffix drafter is right. Its priors come from this."""

from collections import Counter
from collections.abc import Sequence

from rich.table import Table

from bench.cost_curves import Curve
from bench.pairs import TokenPair
from bench.replay.players import ServerPlayer
from bench.replay.rules import Setup
from drafters.base import Draft, DraftQuery, SequenceStart, Slices
from drafters.suffix import NUM_CLASSES, SuffixDrafter
from engine.speculative.acceptance import count_accepted

CLASSES = ("<3", "3", "4-5", "6-8", "9-15", "16-31", "32+")
KINDS = ("cursor", "match", "disputed", "finished")


class WatchedSuffix(SuffixDrafter):
    """A suffix drafter that knows the answer and counts how many of its drafted tokens are right.

    compared: drafted tokens up to and including the first wrong one of each draft, by bucket.
    right: those of them that were right, by bucket.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answer: Sequence[int] = ()
        self.compared: Counter[int] = Counter()
        self.right: Counter[int] = Counter()
        self._at = 0

    def open(self, start: SequenceStart) -> Slices:
        """Open the sequence as the drafter does."""
        self._at = 0
        return super().open(start)

    def propose(self, query: DraftQuery) -> Draft:
        """Propose as the drafter does, and count the tokens."""
        draft = super().propose(query)
        if draft.tokens:
            right = count_accepted(draft.tokens, self.answer[self._at : self._at + len(draft.tokens)])
            self.compared[draft.bucket] += min(right + 1, len(draft.tokens))
            self.right[draft.bucket] += right
        return draft

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Observe as the drafter does."""
        self._at += len(tokens)
        super().observe(seq, tokens)


def calibrate(pairs: Sequence[TokenPair], setup: Setup, curve: Curve) -> WatchedSuffix:
    """Replay the pairs in order with the server's gate, keeping finished requests in the history."""
    drafter = WatchedSuffix()
    player = ServerPlayer([drafter], setup.settings, curve, setup.line_ends)
    for pair in pairs:
        drafter.answer = pair.answer
        player.play(pair)
    return drafter


def table_of(name: str, counts: WatchedSuffix) -> Table:
    """Make a table of how often drafted tokens were right, by kind of evidence and match length."""
    table = Table("kind", *CLASSES, title=name)
    for kind, kind_name in enumerate(KINDS):
        cells = []
        for step in range(NUM_CLASSES):
            bucket = kind * NUM_CLASSES + step
            compared = counts.compared[bucket]
            cells.append(f"{counts.right[bucket] / compared:.2f} of {compared}" if compared else "")
        table.add_row(kind_name, *cells)
    return table
