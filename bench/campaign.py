"""Run the rounds of a benchmark, alternating between servers so that a drift of the machine affects all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.child import BareLoop
from bench.load import RequestOptions, ServerUnderLoad
from bench.measurement import Round
from bench.prompts import PromptMaker

OnRound = Callable[[Round], None]
"""Called after each round, to show progress."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """What to measure, and how often.

    levels: numbers of concurrent streams, measured one after the other.
    num_rounds: measured rounds per level, after one warm-up round.
    num_requests: per level, round and server; None: twice the streams, but at least 4.
    servers: one or two. bare_loop: also measured at one stream, if given.
    """

    levels: Sequence[int]
    num_rounds: int
    num_requests: int | None
    options: RequestOptions
    servers: Sequence[ServerUnderLoad]
    bare_loop: BareLoop | None = None

    def run(self, maker: PromptMaker, on_round: OnRound) -> list[Round]:
        """Run all rounds and return them in order, warm-up rounds included.

        Within a round every server gets the same prompts; every round gets new ones.
        """
        rounds: list[Round] = []
        for level in self.levels:
            for number in range(self.num_rounds + 1):
                prompts = [maker.make() for _ in range(self.requests_at(level))]
                for server in self.servers:
                    rounds.append(server.measure(prompts, self.options, level, number))
                    on_round(rounds[-1])
                if self.bare_loop is not None and level == 1:
                    rounds.append(self.bare_loop.measure(prompts, self.options.max_tokens, number))
                    on_round(rounds[-1])
        return rounds

    def requests_at(self, level: int) -> int:
        """Return the number of requests in one round at this many streams."""
        return self.num_requests or max(4, 2 * level)
