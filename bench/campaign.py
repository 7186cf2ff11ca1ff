"""The order of rounds: what is compared takes turns, so that a machine's moods meet all alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.child import BareLoop
from bench.load import Asking, ServerSide
from bench.measurement import Round
from bench.prompts import PromptMaker

Tell = Callable[[Round], None]
"""Called after each round, for a person who waits."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """What to measure, and how often.

    levels: numbers of streams, each in turn. num_rounds: measured ones, after one that warms up.
    num_requests: per level and round, and side; None: twice the streams, and at least 4.
    servers: one or two. bare_loop: takes a turn at one stream, if there is one.
    """

    levels: Sequence[int]
    num_rounds: int
    num_requests: int | None
    asking: Asking
    servers: Sequence[ServerSide]
    bare_loop: BareLoop | None = None

    def run(self, maker: PromptMaker, tell: Tell) -> list[Round]:
        """All rounds, warm-ups included, in the order in which they ran.

        Every side of a round gets the same prompts; every round gets new ones.
        """
        rounds: list[Round] = []
        for level in self.levels:
            for number in range(self.num_rounds + 1):
                prompts = [maker.make() for _ in range(self.requests_at(level))]
                for server in self.servers:
                    rounds.append(server.measure(prompts, self.asking, level, number))
                    tell(rounds[-1])
                if self.bare_loop is not None and level == 1:
                    rounds.append(self.bare_loop.measure(prompts, self.asking.max_tokens, number))
                    tell(rounds[-1])
        return rounds

    def requests_at(self, level: int) -> int:
        """Requests of one round at so many streams."""
        return self.num_requests or max(4, 2 * level)
