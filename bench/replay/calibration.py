"""Measure how often each bucket of the suffix drafter is right. Its priors come from this."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from bench.cost_curves import Curve
from bench.pairs import TokenPair
from bench.replay.players import ServerPlayer
from bench.replay.rules import Setup
from bench.tables import Column, print_rows
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


def print_calibration(console: Console, name: str, counts: WatchedSuffix) -> None:
    """Print how often drafted tokens were right, by kind of evidence and match length."""
    rows = []
    for kind, kind_name in enumerate(KINDS):
        row = {"kind": kind_name}
        for step in range(NUM_CLASSES):
            bucket = kind * NUM_CLASSES + step
            compared = counts.compared[bucket]
            row[CLASSES[step]] = f"{counts.right[bucket] / compared:.2f} of {compared}" if compared else ""
        rows.append(row)
    print_rows(console, rows, [Column(one, one) for one in ("kind", *CLASSES)], name)
