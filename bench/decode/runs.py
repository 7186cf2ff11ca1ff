"""Answer chats once in one configuration, and record times and counts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Protocol

from bench.local_engine import LocalEngine
from bench.turn_requests import request_of
from bench.workloads import Chat, Turn
from engine.request import DraftChoice, DraftingReport, DraftType, Finished, GenerationRequest


@dataclass(frozen=True, slots=True)
class Configuration:
    """How to answer. is_free: schemas are ignored."""

    draft_type: DraftType
    num_draft_tokens: int = 0
    is_free: bool = False


PLAIN = Configuration("none")
FREE = Configuration("none", is_free=True)


class Meter(Protocol):
    """Reads the energy used since some fixed start, in joules; None if it is not measured."""

    def read(self) -> float | None:
        """Return the joules since the start."""


@dataclass(slots=True)
class Counts:
    """Sums of drafting statistics over any number of answers; see engine.request.DraftingReport."""

    num_forwards: int = 0
    by_source: Counter[tuple[str, bool]] = field(default_factory=Counter)
    by_position: list[list[int]] = field(default_factory=list)
    drafter_s: float = 0.0
    open_s: float = 0.0
    translation: Counter[str] = field(default_factory=Counter)

    def add(self, report: DraftingReport) -> None:
        """Add the counts of one answer."""
        self.num_forwards += report.num_forwards
        for name, drafted, accepted in report.by_source:
            self.by_source[name, False] += drafted
            self.by_source[name, True] += accepted
        self._add_positions(report.by_position)
        self.drafter_s += report.drafter_s
        self.open_s += report.drafter_open_s
        self.translation.update(report.translation)

    def merge(self, other: "Counts") -> None:
        """Add the counts of another object."""
        self.num_forwards += other.num_forwards
        self.by_source.update(other.by_source)
        self._add_positions(other.by_position)
        self.drafter_s += other.drafter_s
        self.open_s += other.open_s
        self.translation.update(other.translation)

    def _add_positions(self, pairs: Sequence[Sequence[int]]) -> None:
        while len(self.by_position) < len(pairs):
            self.by_position.append([0, 0])
        for mine, (drafted, accepted) in zip(self.by_position, pairs, strict=False):
            mine[0] += drafted
            mine[1] += accepted


@dataclass(frozen=True, slots=True)
class TurnRun:
    """One turn, answered once by all streams together.

    turn: its position in the chat, from 1. tokens, origins: one entry per stream.
    decode_s: from the end of prefill to the last token; with several streams, from submission to the last
    token of all. prefill_s: from admission to the end of the last prefill. first_token_s: the mean over
    streams.
    """

    turn: int
    tokens: tuple[tuple[int, ...], ...]
    origins: tuple[tuple[tuple[str, int], ...], ...]
    num_prefilled: int
    prefill_s: float
    first_token_s: float
    decode_s: float
    counts: Counts
    energy_j: float | None = None

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all streams."""
        return sum(map(len, self.tokens))


class Runner:
    """Runs chats on an engine.

    skipped: for (workload, turn), the chats whose prompt left no room for an answer.
    """

    def __init__(self, local: LocalEngine, max_tokens: int, seed: int, meter: Meter) -> None:
        self.local = local
        self.max_tokens = max_tokens
        self.seed = seed
        self.meter = meter
        self.skipped: dict[tuple[str, int], set[int]] = {}

    def run(self, chats: Sequence[Chat], how: Configuration) -> list[TurnRun]:
        """Run concurrent chats and return their measured turns. Drafter tables are cleared first."""
        self.local.engine.table_reset()
        runs = []
        for number, turns in enumerate(zip_longest(*(chat.turns for chat in chats)), 1):
            requests = self.requests([turn for turn in turns if turn], how)
            if not requests:
                self.skipped.setdefault((chats[0].workload, number), set()).add(id(chats[0]))
                continue
            before = self.meter.read()
            ends = self.local.answer(requests)
            after = self.meter.read()
            if any(turn and turn.is_measured for turn in turns):
                runs.append(
                    turn_run(number, ends, None if before is None or after is None else after - before)
                )
        return runs

    def requests(self, turns: Sequence[Turn], how: Configuration) -> list[GenerationRequest]:
        """Return the requests of one turn of all streams; empty if one has no room for an answer."""
        choice = DraftChoice(how.draft_type, how.num_draft_tokens or None)
        requests = []
        for at, turn in enumerate(turns):
            wanted = replace(turn, schema=None) if how.is_free else turn
            request = request_of(self.local, wanted, self.max_tokens, self.seed + at, choice)
            if request is None:
                return []
            requests.append(replace(request, id=f"bench-{at}"))
        return requests


def turn_run(turn: int, ends: Sequence[Finished], energy_j: float | None = None) -> TurnRun:
    """Make the TurnRun of all streams' answers to one turn."""
    usages = [end.usage for end in ends]
    counts = Counts()
    for usage in usages:
        counts.add(usage.drafting)
    decode_began_s = usages[0].prefill_s if len(usages) == 1 else 0.0
    return TurnRun(
        turn=turn,
        tokens=tuple(end.tokens for end in ends),
        origins=tuple(usage.drafting.origins for usage in usages),
        num_prefilled=sum(usage.num_prompt_tokens - usage.num_cached_tokens for usage in usages),
        prefill_s=max(usage.prefill_s for usage in usages) - min(usage.queue_s for usage in usages),
        first_token_s=sum(usage.first_token_s for usage in usages) / len(usages),
        decode_s=max(usage.total_s for usage in usages) - decode_began_s,
        counts=counts,
        energy_j=energy_j,
    )
