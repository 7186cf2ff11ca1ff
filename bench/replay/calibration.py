"""Count how often the suffix drafter is right, by kind of evidence and length of the match."""

from collections import defaultdict
from collections.abc import Sequence

from rich.console import Console

from bench.replay.pairs import TokenPair
from bench.replay.policies import Setup
from bench.tables import Column, print_rows
from drafters.base import Draft, DraftQuery
from drafters.suffix import NUM_CLASSES, SuffixDrafter
from engine.speculative.acceptance import count_accepted

KINDS = ("cursor", "match", "disputed", "finished")
LENGTHS = ("<3", "3", "4-5", "6-8", "9-15", "16-31", "32+")


class WatchedSuffix(SuffixDrafter):
    """A suffix drafter that knows the answer.

    rest: of the answer. counts: by bucket, [right tokens, tokens up to the first wrong one of each draft].
    """

    def __init__(self) -> None:
        super().__init__()
        self.rest: Sequence[int] = ()
        self.counts: dict[int, list[int]] = defaultdict(lambda: [0, 0])

    def propose(self, query: DraftQuery) -> Draft:
        """Propose as the drafter does, and count the tokens."""
        draft = super().propose(query)
        num_right, counts = count_accepted(draft.tokens, self.rest), self.counts[draft.bucket]
        counts[0] += num_right
        counts[1] += min(num_right + 1, len(draft.tokens))
        return draft

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Observe as the drafter does."""
        self.rest = self.rest[len(tokens) :]
        super().observe(seq, tokens)


def calibrate(console: Console, pairs: Sequence[TokenPair], setup: Setup) -> None:
    """Replay the pairs with the server's gate, and print the shares of right tokens for each workload."""
    columns = [Column("kind", "kind"), *(Column(one, one) for one in LENGTHS)]
    for workload in dict.fromkeys(pair.workload for pair in pairs):
        drafter = WatchedSuffix()
        player = setup.server(setup.settings, [drafter])
        for pair in pairs:
            if pair.workload == workload:
                drafter.rest = pair.answer
                player.play(pair)
        rows: list[dict[str, str]] = [{"kind": kind} for kind in KINDS]
        for bucket, (num_right, num_all) in drafter.counts.items():
            kind, length = divmod(bucket, NUM_CLASSES)
            rows[kind][LENGTHS[length]] = f"{num_right / num_all:.2f} of {num_all}" if num_all else "-"
        print_rows(console, rows, columns, workload)
