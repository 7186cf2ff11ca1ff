"""Compute the economics section of a result document: when drafting pays, according to the trials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bench.economics.trials import CONTROLLED, Trial
from bench.statistics import Estimate, break_even, fit_line, geometric_mean_of, jackknife, mean_of, ratio

BUCKETS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""The edges of the acceptance buckets; each bucket includes its lower edge, the last one both."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A line of speedup over acceptance at one draft length: speedup = a + b * acceptance.

    break_even: the acceptance at which drafting is as fast as plain decoding; nan if there is none.
    """

    num_draft_tokens: int
    a: Estimate
    b: Estimate
    break_even: Estimate
    num_trials: int
    r_squared: float

    @property
    def step_cost(self) -> float:
        """The cost of a step with this many drafted tokens, in plain steps, according to the fit.

        Such a step commits 1 + k * acceptance tokens. The fit is most reliable in the middle of the line.
        """
        return (1 + self.num_draft_tokens / 2) / (self.a.value + self.b.value / 2)


@dataclass(frozen=True, slots=True)
class Slope:
    """Break-even by draft length k: r + beta * k. off: the largest distance from a break-even."""

    r: Estimate
    beta: Estimate
    off: float


def fit(trials: Sequence[Trial]) -> tuple[list[Fit], Slope | None]:
    """Return a fit for each draft length of the controlled trials, and the line through their break-evens.

    The line is None with fewer than two lengths that have a break-even.
    """
    controlled = [trial for trial in trials if trial.draft_type == CONTROLLED]
    lengths = sorted({trial.num_draft_tokens for trial in controlled})
    of = np.array([trial.num_draft_tokens for trial in controlled])
    x = np.array([trial.acceptance for trial in controlled])
    y = np.array([trial.speedup for trial in controlled])

    def estimate(mask: NDArray[np.bool_]) -> list[float]:
        lines = [fit_line(x[mask & (of == length)], y[mask & (of == length)]) for length in lengths]
        even = [break_even(a, b) for a, b in lines]
        known = [at for at, value in enumerate(even) if np.isfinite(value)]
        slope = (
            fit_line(np.array([float(lengths[at]) for at in known]), np.array([even[at] for at in known]))
            if len(known) > 1
            else (float("nan"), float("nan"))
        )
        return [*(value for line, at in zip(lines, even, strict=True) for value in (*line, at)), *slope]

    if not controlled:
        return [], None
    estimates = jackknife([trial.chat for trial in controlled], estimate)
    fits = []
    for at, length in enumerate(lengths):
        a, b, even = estimates[3 * at : 3 * at + 3]
        here = of == length
        fits.append(Fit(length, a, b, even, int(here.sum()), _r_squared(x[here], y[here], a.value, b.value)))
    r, beta = estimates[-2:]
    known = [one for one in fits if np.isfinite(one.break_even.value)]
    if len(known) < 2:
        return fits, None
    off = max(abs(one.break_even.value - r.value - beta.value * one.num_draft_tokens) for one in known)
    return fits, Slope(r, beta, off)


def _r_squared(x: NDArray[np.float64], y: NDArray[np.float64], a: float, b: float) -> float:
    total = float(((y - y.mean()) ** 2).sum())
    return 1.0 - float(((y - a - b * x) ** 2).sum()) / total if total else 0.0


def buckets(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return speedups of forced trials by acceptance and draft length, without those that had no draft."""
    groups: dict[tuple[int, int], list[Trial]] = {}
    for trial in trials:
        if not trial.is_gated and trial.spent.num_drafted:
            at = min(int(np.searchsorted(BUCKETS, trial.acceptance, side="right")) - 1, len(BUCKETS) - 2)
            groups.setdefault((at, trial.num_draft_tokens), []).append(trial)
    rows = []
    for (at, length), group in sorted(groups.items()):
        speedups = [trial.speedup for trial in group]
        rows.append({
            "label": f"{100 * BUCKETS[at]:.0f} to {100 * BUCKETS[at + 1]:.0f} %", "from": BUCKETS[at],
            "to": BUCKETS[at + 1], "num_draft_tokens": length, "n": len(group),
            "speedup": float(np.exp(np.mean(np.log(speedups)))), "lowest": min(speedups),
            "highest": max(speedups),
        })  # fmt: skip
    return rows


def predictions(trials: Sequence[Trial], curve: Mapping[int, float]) -> list[dict[str, Any]]:
    """Return predicted and measured speedups; no trial is part of the data that its prediction is made from.

    by "cost curve": from step costs measured when the model was loaded, and the widths of the trial's steps.
    by "fit": for a controlled trial, from the fit over all other chats; for other draft types, from the fit
    over controlled trials, the widths of the trial's steps and its drafter's time.

    curve: seconds of a step by number of drafted tokens, including 0; may be empty.
    """
    rows = []
    controlled = [trial for trial in trials if trial.draft_type == CONTROLLED]
    without = {
        chat: fit([trial for trial in controlled if trial.chat != chat])[0]
        for chat in {trial.chat for trial in controlled}
    }
    fits, _ = fit(controlled)
    costs = {0: 1.0} | {one.num_draft_tokens: one.step_cost for one in fits}
    for trial in trials:
        if not trial.spent.num_drafted:
            continue
        predicted = {}
        if curve:
            steps = {drafted: seconds / curve[0] for drafted, seconds in curve.items()}
            predicted["cost curve"] = _by_costs(trial, steps)
        if trial.draft_type == CONTROLLED:
            for one in without[trial.chat]:
                if one.num_draft_tokens == trial.num_draft_tokens:
                    predicted["fit"] = one.a.value + one.b.value * trial.acceptance
        elif fits and trial.num_draft_tokens <= max(costs):
            predicted["fit"] = _by_costs(trial, costs)
        names = ("draft_type", "num_draft_tokens", "workload", "chat", "is_gated")
        about = {name: getattr(trial, name) for name in names}
        rows += [
            about | {"by": by, "predicted": value, "measured": trial.speedup}
            for by, value in predicted.items()
        ]
    return rows


def _by_costs(trial: Trial, costs: Mapping[int, float]) -> float:
    """Return the speedup of a trial if its steps had these costs, in plain steps by drafted tokens."""
    known = sorted(costs)
    drafted, counts = zip(*trial.spent.widths, strict=True)
    each = np.interp(drafted, known, [costs[one] for one in known])
    steps = float(np.dot(each, counts)) + trial.spent.drafter_s * trial.plain_tps
    return len(trial.spent.tokens) / steps


def errors(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the errors of predictions: median of |predicted / measured - 1|, and mean with its sign."""
    if not rows:
        return []
    off = pl.col("predicted") / pl.col("measured") - 1
    return (
        pl.DataFrame(list(rows))
        .group_by("by", "draft_type", maintain_order=True)
        .agg(n=pl.len(), median_error=off.abs().median(), mean_error=off.mean())
        .to_dicts()
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """One draft type and length on one workload: the geometric mean over its chats."""

    workload: str
    draft_type: str
    num_draft_tokens: int
    is_gated: bool
    speedup: Estimate
    acceptance: float
    share_drafted: float
    num_chats: int

    @property
    def pays(self) -> bool:
        """Whether it is faster than plain decoding with 95 % confidence."""
        return self.speedup.low is not None and self.speedup.low > 1.0


def choices(trials: Sequence[Trial]) -> list[Choice]:
    """Return every draft type and length that a user could choose, by workload."""
    return [
        Choice(
            *key,
            speedup=geometric_mean_of([trial.speedup for trial in group]),
            acceptance=ratio(*(sum(counts) for counts in _counts(group)[:2])) or 0.0,
            share_drafted=sum(_counts(group)[0]) / sum(_counts(group)[2]),
            num_chats=len(group),
        )
        for key, group in _groups([trial for trial in trials if trial.draft_type != CONTROLLED]).items()
    ]


def _groups(trials: Sequence[Trial]) -> dict[tuple[str, str, int, bool], list[Trial]]:
    groups: dict[tuple[str, str, int, bool], list[Trial]] = {}
    for trial in trials:
        key = trial.workload, trial.draft_type, trial.num_draft_tokens, trial.is_gated
        groups.setdefault(key, []).append(trial)
    return groups


def _counts(trials: Sequence[Trial]) -> tuple[list[int], list[int], list[int]]:
    """Return accepted, drafted and all tokens of each trial."""
    spent = [trial.spent for trial in trials]
    return [s.num_accepted for s in spent], [s.num_drafted for s in spent], [len(s.tokens) for s in spent]


def model_needs(trials: Sequence[Trial]) -> dict[int, Estimate]:
    """Return the acceptance from which the draft model pays, by draft length.

    Its time is part of its steps: if a step takes as long as c plain ones, it pays from (c - 1) / length.
    """
    needs: dict[int, dict[int, list[float]]] = {}
    for trial in trials:
        if trial.draft_type == "draft-model" and not trial.is_gated:
            cost = trial.spent.decode_s * trial.plain_tps / trial.spent.num_forwards
            of_chats = needs.setdefault(trial.num_draft_tokens, {})
            of_chats.setdefault(trial.chat, []).append((cost - 1) / trial.num_draft_tokens)
    return {
        length: mean_of([float(np.mean(one)) for one in of_chats.values()])
        for length, of_chats in needs.items()
    }


def advised(trials: Sequence[Trial], workload: str) -> Estimate | None:
    """Estimate the speedup of a workload's best draft type and length by cross-validation.

    The best of many choices looks better than it is on the chats that it was chosen by. So for each chat the
    choice is the one that is best on the other chats. None with fewer than three chats.
    """
    logs = _advised_logs(trials, workload)
    return geometric_mean_of(list(np.exp(list(logs.values())))) if logs else None


def against_auto(trials: Sequence[Trial], workload: str) -> Estimate | None:
    """Return the speedup of advised() relative to auto; None without auto or with fewer than three chats."""
    logs = _advised_logs(trials, workload)
    auto = {trial.chat: float(np.log(trial.speedup)) for trial in _real(trials, workload) if trial.is_gated}
    if not logs or logs.keys() != auto.keys():
        return None
    return geometric_mean_of([float(np.exp(logs[chat] - auto[chat])) for chat in logs])


def _real(trials: Sequence[Trial], workload: str) -> list[Trial]:
    return [trial for trial in trials if trial.workload == workload and trial.draft_type != CONTROLLED]


def _advised_logs(trials: Sequence[Trial], workload: str) -> dict[int, float]:
    logs = {
        (trial.chat, (trial.draft_type, trial.num_draft_tokens)): float(np.log(trial.speedup))
        for trial in _real(trials, workload)
        if not trial.is_gated
    }
    chats, kinds = sorted({chat for chat, _ in logs}), sorted({kind for _, kind in logs})
    if len(chats) < 3:
        return {}
    chosen_logs = {}
    for chat in chats:
        # Not drafting is a choice too.
        best, best_mean = None, 0.0
        for kind in kinds:
            mean = float(np.mean([logs[other, kind] for other in chats if other != chat]))
            if mean > best_mean:
                best, best_mean = kind, mean
        chosen_logs[chat] = 0.0 if best is None else logs[chat, best]
    return chosen_logs


def energy(trials: Sequence[Trial], source: str | None, reason: str | None) -> dict[str, Any]:
    """Return the joules per token, prefill included, of each choice and of plain decoding beside it."""
    if source is None:
        return {"measured": "not measured", "reason": reason, "rows": []}
    metered = [trial for trial in trials if None not in (trial.spent.joules, trial.plain_joules)]
    rows = []
    for (workload, draft_type, length, is_gated), group in _groups(metered).items():
        tokens = sum(_counts(group)[2])
        drafted_j = sum(trial.spent.joules or 0.0 for trial in group)
        plain_j = sum(trial.plain_joules or 0.0 for trial in group)
        rows.append({
            "workload": workload, "draft_type": draft_type, "num_draft_tokens": length, "is_gated": is_gated,
            "energy_j_per_token": drafted_j / tokens, "plain_j_per_token": plain_j / tokens,
            "ratio": ratio(drafted_j, plain_j),
        })  # fmt: skip
    return {"measured": source, "reason": None, "rows": rows}
