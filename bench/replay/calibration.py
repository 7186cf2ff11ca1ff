"""How often the suffix drafter is right, by kind of evidence and length of the match: where its priors are from."""

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
    """A suffix drafter that knows the answer and counts how many of its drafted tokens are right.

    rest: of the answer. counts: by bucket, [right tokens, tokens up to and including a draft's first wrong one].
    """

    def __init__(self) -> None:
        super().__init__()
        self.rest: Sequence[int] = ()
        self.counts: dict[int, list[int]] = defaultdict(lambda: [0, 0])

    def propose(self, query: DraftQuery) -> Draft:
        """Propose as the drafter does, and count the tokens."""
        draft = super().propose(query)
        num_right = count_accepted(draft.tokens, self.rest[: len(draft.tokens)])
        counts = self.counts[draft.bucket]
        counts[0] += num_right
        counts[1] += min(num_right + 1, len(draft.tokens))
        return draft

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Observe as the drafter does."""
        self.rest = self.rest[len(tokens) :]
        super().observe(seq, tokens)


def calibrate(pairs: Sequence[TokenPair], setup: Setup) -> dict[int, list[int]]:
    """Replay the pairs in order with the server's gate, keeping finished requests; return the counts."""
    drafter = WatchedSuffix()
    player = setup.server(setup.settings, [drafter])
    for pair in pairs:
        drafter.rest = pair.answer
        player.play(pair)
    return drafter.counts


def print_calibration(console: Console, pairs: Sequence[TokenPair], setup: Setup) -> None:
    """Print the shares of right tokens, in a table for each workload."""
    columns = [Column("kind", "kind"), *(Column(one, one, _share) for one in LENGTHS)]
    for workload in dict.fromkeys(pair.workload for pair in pairs):
        counts = calibrate([pair for pair in pairs if pair.workload == workload], setup)
        rows = [
            {"kind": kind} | {one: counts.get(at * NUM_CLASSES + step) for step, one in enumerate(LENGTHS)}
            for at, kind in enumerate(KINDS)
        ]
        print_rows(console, rows, columns, workload or "pairs")


def _share(counts: list[int] | None) -> str:
    return f"{counts[0] / counts[1]:.2f} of {counts[1]}" if counts and counts[1] else ""
