"""How often each bucket of the suffix drafter is right: what its priors come from."""

from collections import Counter
from collections.abc import Sequence

from rich.table import Table

from bench.cost_curves import Curve
from bench.pairs import TokenPair
from bench.replay.players import ServerPlayer
from bench.replay.rules import Setup
from drafters.base import Draft, DraftQuery, SequenceStart
from drafters.suffix import NUM_CLASSES, SuffixDrafter
from engine.speculative.acceptance import count_accepted

CLASSES = ("<3", "3", "4-5", "6-8", "9-15", "16-31", "32+")
KINDS = ("cursor", "match", "disputed", "finished")


class WatchedSuffix(SuffixDrafter):
    """Knows the answers, and counts its drafted tokens up to the first wrong one of each draft.

    compared, right: of them, all and those that were right, by bucket.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answer: Sequence[int] = ()
        self.compared: Counter[int] = Counter()
        self.right: Counter[int] = Counter()
        self._at = 0

    def open(self, opening: SequenceStart) -> None:
        """As the drafter does."""
        self._at = 0
        super().open(opening)

    def propose(self, ask: DraftQuery) -> Draft:
        """As the drafter does, counted."""
        draft = super().propose(ask)
        if draft.tokens:
            right = count_accepted(draft.tokens, self.answer[self._at : self._at + len(draft.tokens)])
            self.compared[draft.bucket] += min(right + 1, len(draft.tokens))
            self.right[draft.bucket] += right
        return draft

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """As the drafter does."""
        self._at += len(tokens)
        super().observe(seq, tokens)


def calibrate(pairs: Sequence[TokenPair], setup: Setup, curve: Curve) -> WatchedSuffix:
    """Replay the pairs in order with the server's gate, finished requests being remembered."""
    drafter = WatchedSuffix()
    player = ServerPlayer([drafter], setup.settings, curve, setup.line_ends)
    for pair in pairs:
        drafter.answer = pair.answer
        player.play(pair)
    return drafter


def table_of(name: str, counts: WatchedSuffix) -> Table:
    """Shares of drafted tokens that were right, by kind of evidence and length of the match."""
    table = Table("kind", *CLASSES, title=name)
    for kind, kind_name in enumerate(KINDS):
        cells = []
        for step in range(NUM_CLASSES):
            bucket = kind * NUM_CLASSES + step
            compared = counts.compared[bucket]
            cells.append(f"{counts.right[bucket] / compared:.2f} of {compared}" if compared else "")
        table.add_row(kind_name, *cells)
    return table
