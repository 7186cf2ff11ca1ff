"""Run trials: each chat plainly and with drafts, alternating, so that both see the same machine state."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.economics.controlled import PLACE, ControlledDrafter, chance_for
from bench.energy import EnergyMeter
from bench.local_engine import LocalEngine
from bench.turn_requests import request_of
from bench.workloads import Chat
from engine.request import DraftChoice, DraftType, Finished

CONTROLLED = "controlled"
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The acceptance rates that are aimed at; the analysis uses the measured ones."""

MIN_TOKENS = 8
"""Shorter answers are left out: their times are dominated by measurement noise."""

Advance = Callable[[], None]
"""Called after each measured answer."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Time, counts and energy of one answer, or of the measured turns of one chat.

    decode_s: from the end of prefill to the last token. widths: (drafted tokens, number of such steps).
    drafter_s: the part of decode_s spent in drafters.
    joules: of the whole request, prefill included; None if not measured.
    """

    tokens: tuple[int, ...]
    decode_s: float
    num_forwards: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    widths: tuple[tuple[int, int], ...] = ()
    drafter_s: float = 0.0
    joules: float | None = None

    @property
    def tps(self) -> float:
        """Decode speed in tokens per second."""
        return len(self.tokens) / self.decode_s


@dataclass(frozen=True, slots=True)
class Trial:
    """A chat decoded with drafts, compared with the plain runs of the same chat just before and after.

    chat: its number, over all workloads. draft_type: CONTROLLED, or one that a user could choose.
    num_draft_tokens: maximum draft length. is_gated: whether the engine was free to leave drafts out.
    plain_tps: over both plain runs together. plain_joules: mean of the plain runs.
    """

    chat: int
    workload: str
    draft_type: str
    num_draft_tokens: int
    is_gated: bool
    spent: Spent
    plain_tps: float
    is_equal: bool
    plain_joules: float | None = None

    @property
    def acceptance(self) -> float:
        """The share of drafted tokens that were accepted; 0 if nothing was drafted."""
        return self.spent.num_accepted / self.spent.num_drafted if self.spent.num_drafted else 0.0

    @property
    def speedup(self) -> float:
        """The decode speed, relative to plain decoding of the same chat at the same time."""
        return self.spent.tps / self.plain_tps


DraftSetting = tuple[DraftType, int]
"""A draft type and the maximum draft length."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run each answer.

    max_tokens: of each answer. seed: of sampling. repeats: runs of each answer, of which the fastest counts,
    because other work on the machine can only slow a run down.
    """

    max_tokens: int
    seed: int
    repeats: int = 1


class TrialRunner:
    """Runs trials on an engine. advance: called after each measured answer."""

    def __init__(self, local: LocalEngine, meter: EnergyMeter, options: RunOptions, advance: Advance) -> None:
        self.local = local
        self.meter = meter
        self.options = options
        self.advance = advance

    def warm_up(self, chat: Chat, lengths: Sequence[int]) -> None:
        """Decode once at each width, unmeasured: the first step of a new shape may have to build kernels."""
        for length in lengths:
            self.control(0, chat, length, levels=(1.0,))

    def compare(
        self, number: int, chat: Chat, groups: Sequence[Sequence[DraftSetting]], is_gated: bool
    ) -> list[Trial]:
        """Run a chat with every draft setting, with a plain run before and after each group of settings."""
        plain = self._run(chat, "none", None)
        trials = []
        for group in groups:
            runs = [self._run(chat, draft_type, length) for draft_type, length in group]
            plain_runs = [plain, self._run(chat, "none", None)]
            plain = plain_runs[-1]
            if len(plain.tokens) >= MIN_TOKENS:
                trials += [
                    _trial(number, chat, draft_type, length, is_gated, run, plain_runs)
                    for (draft_type, length), run in zip(group, runs, strict=True)
                ]
        return trials

    def control(
        self, number: int, chat: Chat, num_draft_tokens: int, levels: Sequence[float] = LEVELS
    ) -> list[Trial]:
        """Run a chat's first measured turn at every level of acceptance, between two plain runs."""
        turn = next((turn for turn in chat.turns if turn.is_measured), None)
        if turn is None:
            return []
        first_turn = Chat(chat.workload, (turn,), chat.prompt_tokens)
        oracle = ControlledDrafter(self.local.engine.info.vocab_size, number)
        before = self._run(first_turn, "none", None)
        original, self.local.drafters[PLACE] = self.local.drafters[PLACE], oracle
        runs = []
        try:
            for level in levels if len(before.tokens) >= MIN_TOKENS else ():
                oracle.chance = chance_for(level, num_draft_tokens)
                # Type draft-model uses no lookups, so nothing but the prediction is drafted.
                runs.append(self._run(first_turn, "draft-model", num_draft_tokens, before.tokens))
        finally:
            self.local.drafters[PLACE] = original
        plain_runs = [before, self._run(first_turn, "none", None)]
        return [
            _trial(number, first_turn, CONTROLLED, num_draft_tokens, False, run, plain_runs) for run in runs
        ]

    def _run(
        self,
        chat: Chat,
        draft_type: DraftType,
        num_draft_tokens: int | None,
        prediction: tuple[int, ...] = (),
    ) -> Spent:
        choice = DraftChoice(draft_type, num_draft_tokens)
        runs = [self._run_once(chat, choice, prediction) for _ in range(self.options.repeats)]
        self.advance()
        return min(runs, key=lambda one: one.decode_s)

    def _run_once(self, chat: Chat, choice: DraftChoice, prediction: tuple[int, ...]) -> Spent:
        self.local.engine.table_reset()
        parts = []
        for turn in chat.turns:
            request = request_of(
                self.local, turn, self.options.max_tokens, self.options.seed, choice, prediction
            )
            if request is None:
                break
            before_j = self.meter.read()
            (end,) = self.local.answer([request])
            after_j = self.meter.read()
            if turn.is_measured:
                joules = after_j - before_j if before_j is not None and after_j is not None else None
                parts.append(_spent(end, joules))
        return _joined(parts)


def _trial(
    number: int,
    chat: Chat,
    draft_type: str,
    num_draft_tokens: int,
    is_gated: bool,
    spent: Spent,
    plain_runs: Sequence[Spent],
) -> Trial:
    joules = [run.joules for run in plain_runs if run.joules is not None]
    return Trial(
        chat=number,
        workload=chat.workload,
        draft_type=draft_type,
        num_draft_tokens=num_draft_tokens,
        is_gated=is_gated,
        spent=spent,
        plain_tps=sum(len(run.tokens) for run in plain_runs) / sum(run.decode_s for run in plain_runs),
        is_equal=all(run.tokens == spent.tokens for run in plain_runs),
        plain_joules=sum(joules) / len(joules) if len(joules) == len(plain_runs) else None,
    )


def _spent(end: Finished, joules: float | None) -> Spent:
    usage, report = end.usage, end.usage.drafting
    # by_position[i] counts drafts longer than i; differences give the number of drafts of each length.
    at_least = [drafted for drafted, _ in report.by_position]
    exactly = [here - beyond for here, beyond in pairwise([*at_least, 0])]
    num_forwards = report.num_forwards or len(end.tokens)
    num_plain = num_forwards - (at_least[0] if at_least else 0)
    counts = [num_plain, *exactly]
    return Spent(
        tokens=end.tokens,
        decode_s=usage.total_s - usage.prefill_s,
        num_forwards=num_forwards,
        num_drafted=report.num_drafted,
        num_accepted=report.num_accepted,
        widths=tuple((drafted, count) for drafted, count in enumerate(counts) if count),
        drafter_s=report.drafter_s,
        joules=joules,
    )


def _joined(parts: Sequence[Spent]) -> Spent:
    widths: dict[int, int] = {}
    for part in parts:
        for drafted, count in part.widths:
            widths[drafted] = widths.get(drafted, 0) + count
    joules = [part.joules for part in parts if part.joules is not None]
    return Spent(
        tokens=tuple(token for part in parts for token in part.tokens),
        decode_s=sum(part.decode_s for part in parts),
        num_forwards=sum(part.num_forwards for part in parts),
        num_drafted=sum(part.num_drafted for part in parts),
        num_accepted=sum(part.num_accepted for part in parts),
        widths=tuple(sorted(widths.items())),
        drafter_s=sum(part.drafter_s for part in parts),
        joules=sum(joules) if parts and len(joules) == len(parts) else None,
    )
