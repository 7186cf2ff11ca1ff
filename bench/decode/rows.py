"""Compute the rows of the decode table from trials."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from bench.decode.runs import Configuration, Counts, TurnRun
from bench.parity import Parity

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """One turn of one chat, or of several concurrent chats, in one configuration, beside plain decoding.

    plain, drafted: the measured runs, in the order of rounds.
    constrained: plain runs that follow the schema as the drafted ones do, if there is a schema; those in
        plain are then unconstrained.
    best_width, hindsight: speedups, see bench.hindsight; None if unknown.
    """

    workload: str
    prompt_tokens: int | None
    streams: int
    configuration: Configuration
    turn: int
    plain: Sequence[TurnRun]
    drafted: Sequence[TurnRun]
    parity: Parity
    constrained: Sequence[TurnRun] = ()
    best_width: float | None = None
    hindsight: float | None = None


@dataclass(slots=True)
class _Sums:
    """Sums over turns: times are those of the best run of each turn, counts are over all runs."""

    num_tokens: int = 0
    num_prefilled: int = 0
    decode_s: float = 0.0
    prefill_s: float = 0.0
    first_tokens_s: list[float] = field(default_factory=list)
    energy_j: float | None = 0.0
    num_counted: int = 0
    counts: Counts = field(default_factory=Counts)

    def add(self, runs: Sequence[TurnRun]) -> None:
        self.num_tokens += runs[0].num_tokens
        self.num_prefilled += runs[0].num_prefilled
        self.decode_s += min(run.decode_s for run in runs)
        self.prefill_s += min(run.prefill_s for run in runs)
        self.first_tokens_s.append(min(run.first_token_s for run in runs))
        for run in runs:
            self.num_counted += run.num_tokens
            self.counts.merge(run.counts)
            is_metered = self.energy_j is not None and run.energy_j is not None
            self.energy_j = self.energy_j + run.energy_j if is_metered else None  # type: ignore[operator]

    @property
    def tps(self) -> float | None:
        return _ratio(self.num_tokens, self.decode_s)

    @property
    def joules_per_token(self) -> float | None:
        return None if self.energy_j is None else _ratio(self.energy_j, self.num_counted)


def rows_of(trials: Sequence[Trial]) -> list[Row]:
    """Return a row over all turns for each workload, length and configuration, then rows for single turns."""
    groups: dict[tuple[str, int | None, Configuration], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.workload, trial.prompt_tokens, trial.configuration), []).append(trial)
    rows = []
    for group in groups.values():
        rows.append(row_of(group, None))
        turns = sorted({trial.turn for trial in group})
        if len(turns) > 1:
            rows += [row_of([trial for trial in group if trial.turn == turn], turn) for turn in turns]
    return rows


def row_of(trials: Sequence[Trial], turn: int | None) -> Row:
    """Return the row of trials of one workload, length and configuration.

    turn: the turn of all trials; None for a row over all turns.
    Rates and shares are None where they are undefined, such as acceptance if nothing was drafted.
    """
    first, plain, drafted, constrained = trials[0], _Sums(), _Sums(), _Sums()
    parity = Parity()
    for trial in trials:
        plain.add(trial.plain)
        drafted.add(trial.drafted)
        if trial.constrained:
            constrained.add(trial.constrained)
        parity.add(trial.parity)
    counts = drafted.counts
    names = dict.fromkeys(name for name, _ in counts.by_source)
    by_source = {name: [counts.by_source[name, False], counts.by_source[name, True]] for name in names}
    num_drafted, num_accepted = (sum(pair[at] for pair in by_source.values()) for at in (0, 1))
    speedup = _ratio(drafted.tps, plain.tps)
    # The best runs of several turns may be of different rounds, so their ratio can exceed that of any round.
    speedups = [*_speedups(trials), *([speedup] if speedup else [])]
    best_width = _mean([trial.best_width for trial in trials])
    hindsight = _mean([trial.hindsight for trial in trials])
    return {
        "workload": first.workload,
        "draft_type": first.configuration.draft_type,
        "num_draft_tokens": first.configuration.num_draft_tokens,
        "prompt_tokens": first.prompt_tokens,
        "turn": turn,
        "streams": first.streams,
        "answers": len(trials) * first.streams,
        "tokens": drafted.num_tokens,
        "decode_tps": drafted.tps,
        "plain_tps": plain.tps,
        "constrained_plain_tps": constrained.tps,
        "speedup": speedup,
        "speedup_low": min(speedups, default=None),
        "speedup_high": max(speedups, default=None),
        "prefill_tps": _ratio(drafted.num_prefilled, drafted.prefill_s),
        "plain_prefill_tps": _ratio(plain.num_prefilled, plain.prefill_s),
        "ttft_ms": 1000 * mean(drafted.first_tokens_s),
        "plain_ttft_ms": 1000 * mean(plain.first_tokens_s),
        "acceptance": _ratio(num_accepted, num_drafted),
        "acceptance_by_position": [accepted / drafted for drafted, accepted in counts.by_position],
        "drafted_by_position": [drafted for drafted, _ in counts.by_position],
        "tokens_per_forward": _ratio(drafted.num_counted, counts.num_forwards),
        "drafted_share": _ratio(num_accepted, drafted.num_counted),
        "by_source": by_source,
        "drafter_us_per_token": _ratio(1e6 * counts.drafter_s, drafted.num_counted),
        "drafter_open_ms": _ratio(1e3 * counts.open_s, len(trials) * len(first.drafted) * first.streams),
        **parity.figures(),
        "best_width_speedup": best_width,
        "of_best_width": _ratio(speedup, best_width),
        "hindsight_speedup": hindsight,
        "of_hindsight": _ratio(speedup, hindsight),
        "energy_j_per_token": drafted.joules_per_token,
        "plain_energy_j_per_token": plain.joules_per_token,
    }


def _speedups(trials: Sequence[Trial]) -> list[float]:
    """Return the speedup of each round, to show how much it varies."""
    speedups = []
    for at in range(min(len(trial.drafted) for trial in trials)):
        pair = [[trial.plain[at] for trial in trials], [trial.drafted[at] for trial in trials]]
        speeds = [_ratio(sum(r.num_tokens for r in runs), sum(r.decode_s for r in runs)) for runs in pair]
        ratio = _ratio(speeds[1], speeds[0])
        if ratio is not None:
            speedups.append(ratio)
    return speedups


def _ratio(value: float | None, of: float | None) -> float | None:
    return value / of if value is not None and of else None


def _mean(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return mean(defined) if defined and len(defined) == len(values) else None
