"""Compute the economics section of a result document: when drafting pays, according to the trials.

A trial is a row as bench.economics.trials makes it; several are a data frame.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from bench.economics.advice import advise
from bench.economics.trials import CONTROLLED
from bench.experiment import Row
from bench.statistics import CONFIDENCE, Estimate, Floats, Mask, break_even, fit_line, jackknife, ratio
from bench.statistics import geometric_mean_of as geometric_mean
from bench.statistics import mean_of as mean

Trials = pl.DataFrame
INTERVALS = (
    f"{100 * CONFIDENCE:.0f} % intervals: jackknife over chats, Student's t. They cover other chats of these "
    "kinds on this machine, and nothing else."
)
CHOICE = ("workload", "draft_type", "num_draft_tokens", "is_gated")
_IS_CONTROLLED = pl.col("draft_type") == CONTROLLED
_NUM_BUCKETS = 5


def frame_of(trials: Sequence[Row]) -> Trials:
    """Return trials as a data frame."""
    energies = dict.fromkeys(("joules", "plain_joules", "energy_j_per_token"), pl.Float64)
    return pl.DataFrame(
        trials, infer_schema_length=None, schema_overrides={**energies, "acceptance": pl.Float64}
    )


def section(
    trials: Trials, curve: Mapping[int, float], energy_of: str | None, no_energy: str | None
) -> dict[str, Any]:
    """Return the "economics" section of a result document.

    curve: seconds of a step by number of drafted tokens, including 0; may be empty.
    energy_of, no_energy: what an EnergyMeter counted, or why it did not.
    """
    beside = trials.filter(_IS_CONTROLLED)
    # A harmonic mean, because speeds are rates.
    plain_tps = 1 / (1 / (beside if len(beside) else trials)["plain_tps"]).mean()  # type: ignore[operator]
    fits, slope = fit(trials)
    predicted = predictions(trials, curve)
    found = {
        "plain_tps": plain_tps, "intervals": INTERVALS,
        "fits": [one | {"a": one["a"] * plain_tps, "b": one["b"] * plain_tps} for one in fits],
        "beta": slope, "draft_model": model_needs(trials), "buckets": buckets(trials),
        "choices": choices(trials), "held_out": held_out(trials), "predicted": predicted,
        "errors": errors(predicted), "energy": energy(trials, energy_of, no_energy),
        "points": trials.drop("widths", "joules", "plain_joules").to_dicts(),
    }  # fmt: skip
    return found | {"advice": advise(found, held_out(trials, is_against_auto=True))}


def estimated(one: Estimate, name: str = "speedup") -> Row:
    """Return an estimate as fields of a row."""
    return {name: one.value, "low": one.low, "high": one.high}


def fit(trials: Trials) -> tuple[list[Row], Row | None]:
    """Return lines speedup = a + b * acceptance, and the line r + beta * length through their break-evens.

    There is a line for each draft length of the controlled trials; the last one needs two break-evens.
    step_cost: of a step with this many drafted tokens, in plain steps. It commits 1 + length * acceptance
    tokens, and the fit is most reliable in its middle. off: the largest distance from a break-even.
    """
    frame = trials.filter(_IS_CONTROLLED).with_columns(pl.col("acceptance").fill_null(0.0))
    of, x, y = (frame[name].to_numpy() for name in ("num_draft_tokens", "acceptance", "speedup"))
    lengths = np.unique(of)

    def estimate(mask: Mask) -> list[float]:
        lines = [fit_line(x[mask & (of == length)], y[mask & (of == length)]) for length in lengths]
        even = np.array([break_even(*line) for line in lines])
        known = np.isfinite(even)
        slope = fit_line(lengths[known], even[known]) if known.sum() > 1 else (float("nan"),) * 2
        return [*(value for line, at in zip(lines, even, strict=True) for value in (*line, at)), *slope]

    if frame.is_empty():
        return [], None
    *estimates, r, beta = jackknife(frame["chat"], estimate)
    fits: list[Row] = []
    for at, length in enumerate(lengths.tolist()):
        a, b, even = estimates[3 * at : 3 * at + 3]
        here = of == length
        fits.append({
            "num_draft_tokens": length, "a": a.value, "b": b.value,
            **estimated(even, "break_even"), "n": int(here.sum()),
            "r_squared": _r_squared(y[here], a.value + b.value * x[here]),
            "step_cost": (1 + length / 2) / (a.value + b.value / 2),
        })  # fmt: skip
        if not np.isfinite(even.value):
            fits[-1]["break_even"] = None
    known = [one for one in fits if one["break_even"] is not None]
    if len(known) < 2:
        return fits, None
    off = max(abs(one["break_even"] - r.value - beta.value * one["num_draft_tokens"]) for one in known)
    ends = {"r_low": r.low, "r_high": r.high, "off": off}
    return fits, {"r": r.value, **estimated(beta, "beta"), **ends}


def _r_squared(y: Floats, fitted: Floats) -> float:
    total = float(((y - y.mean()) ** 2).sum())
    return 1.0 - float(((y - fitted) ** 2).sum()) / total if total else 0.0


def buckets(trials: Trials) -> list[Row]:
    """Return speedups of forced trials by acceptance and draft length, without those that had no draft."""
    at = (pl.col("acceptance") * _NUM_BUCKETS).floor().clip(0, _NUM_BUCKETS - 1).cast(pl.Int64)
    ends, speedup = [(pl.col("at") + end) / _NUM_BUCKETS for end in (0, 1)], pl.col("speedup")
    label = pl.format("{} to {} %", *((100 * end).round().cast(pl.Int64) for end in ends))
    return (
        trials.filter(~pl.col("is_gated") & (pl.col("drafted") > 0))
        .group_by(at.alias("at"), "num_draft_tokens")
        .agg(n=pl.len(), speedup=speedup.log().mean().exp(), lowest=speedup.min(), highest=speedup.max())
        .sort("at", "num_draft_tokens")
        .select(pl.all().exclude("at"), label=label, **{"from": ends[0], "to": ends[1]})
        .to_dicts()
    )


def predictions(trials: Trials, curve: Mapping[int, float]) -> list[Row]:
    """Return predicted and measured speedups; no trial is part of the data that its prediction is made from.

    by "cost curve": from step costs measured when the model was loaded, and the widths of the trial's steps.
    by "fit": for a controlled trial, from the fit over all other chats; for other draft types, from the fit
    over controlled trials, the widths of the trial's steps and its drafter's time.
    """
    others = {
        chat: {one["num_draft_tokens"]: one for one in fit(trials.filter(pl.col("chat") != chat))[0]}
        for chat in trials.filter(_IS_CONTROLLED)["chat"].unique()
    }
    costs = {0: 1.0} | {one["num_draft_tokens"]: one["step_cost"] for one in fit(trials)[0]}
    steps = {drafted: seconds / curve[0] for drafted, seconds in curve.items()}
    rows = []
    for trial in trials.filter(pl.col("drafted") > 0).iter_rows(named=True):
        length, predicted = trial["num_draft_tokens"], {}
        if steps:
            predicted["cost curve"] = _by_costs(trial, steps)
        if trial["draft_type"] == CONTROLLED:
            if line := others[trial["chat"]].get(length):
                predicted["fit"] = line["a"] + line["b"] * trial["acceptance"]
        elif len(costs) > 1 and length <= max(costs):
            predicted["fit"] = _by_costs(trial, costs)
        about = {name: trial[name] for name in (*CHOICE, "chat")}
        rows += [
            about | {"by": by, "predicted": value, "measured": trial["speedup"]}
            for by, value in predicted.items()
        ]
    return rows


def _by_costs(trial: Row, costs: Mapping[int, float]) -> float:
    """Return the speedup of a trial if its steps had these costs, in plain steps by drafted tokens."""
    known = sorted(costs)
    each = np.interp(range(len(trial["widths"])), known, [costs[one] for one in known])
    steps = float(np.dot(each, trial["widths"])) + trial["drafter_s"] * trial["plain_tps"]
    return float(trial["tokens"] / steps)


def errors(predicted: Sequence[Row]) -> list[Row]:
    """Return the errors of predictions: median of |predicted / measured - 1|, and mean with its sign."""
    off = pl.col("predicted") / pl.col("measured") - 1
    return (
        pl.DataFrame(predicted)
        .group_by("by", "draft_type", maintain_order=True)
        .agg(n=pl.len(), median_error=off.abs().median(), mean_error=off.mean())
        .to_dicts()
        if predicted
        else []
    )


def choices(trials: Trials) -> list[Row]:
    """Return every draft type and length that a user could choose, by workload.

    pays: whether it is faster than plain decoding with 95 % confidence.
    """
    rows = []
    for key, group in trials.filter(~_IS_CONTROLLED).group_by(CHOICE, maintain_order=True):
        speedup = geometric_mean(group["speedup"])
        accepted = int(group["accepted"].sum())
        rows.append({
            **dict(zip(CHOICE, key, strict=True)), "n": len(group), **estimated(speedup),
            "acceptance": ratio(accepted, int(group["drafted"].sum())) or 0.0,
            "share_drafted": accepted / group["tokens"].sum(),
            "pays": speedup.low is not None and speedup.low > 1.0,
        })  # fmt: skip
    return rows


def model_needs(trials: Trials) -> list[Row]:
    """Return the acceptance from which the draft model pays, by draft length.

    Its time is part of its steps: if a step takes as long as c plain ones, it pays from (c - 1) / length.
    """
    length = pl.col("num_draft_tokens")
    cost = pl.col("tokens") / pl.col("speedup") / pl.col("forwards")
    by_chat = (
        trials.filter((pl.col("draft_type") == "draft-model") & ~pl.col("is_gated"))
        .group_by(length, "chat")
        .agg(need=((cost - 1) / length).mean())
    )
    return [
        {"num_draft_tokens": key, **estimated(mean(group["need"]), "break_even")}
        for (key,), group in sorted(by_chat.group_by(["num_draft_tokens"]), key=lambda one: one[0])
    ]


def held_out(trials: Trials, is_against_auto: bool = False) -> list[Row]:
    """Estimate the speedup of each workload's best draft type and length by cross-validation.

    The best of many choices looks better than it is on the chats that it was chosen by. So for each chat the
    choice is the one that is best on the other chats; not drafting is a choice too. Workloads with fewer than
    three chats are left out. is_against_auto: return the speedup over auto.
    """
    rows = []
    log = pl.col("speedup").log()
    for (workload,), real in trials.filter(~_IS_CONTROLLED).group_by(["workload"], maintain_order=True):
        auto = real.filter("is_gated").sort("chat").select("chat", log)
        kinds = real.filter(~pl.col("is_gated")).with_columns(log).sort("draft_type", "num_draft_tokens")
        if kinds.is_empty():
            continue
        logs = kinds.pivot(["draft_type", "num_draft_tokens"], index="chat", values="speedup").sort("chat")
        of_kinds = logs.drop("chat").to_numpy()
        if len(logs) < 3 or (is_against_auto and auto["chat"].to_list() != logs["chat"].to_list()):
            continue
        each = np.column_stack([np.zeros(len(logs)), of_kinds])
        chosen = (each.sum(axis=0) - each).argmax(axis=1)
        gains = each[np.arange(len(logs)), chosen] - (auto["speedup"].to_numpy() if is_against_auto else 0.0)
        rows.append({"workload": workload, **estimated(geometric_mean(np.exp(gains)))})
    return rows


def energy(trials: Trials, source: str | None, reason: str | None) -> dict[str, Any]:
    """Return the joules per token, prefill included, of each choice and of plain decoding beside it."""
    if source is None:
        return {"measured": "not measured", "reason": reason, "rows": []}
    tokens, drafted, plain = (pl.col(name).sum() for name in ("tokens", "joules", "plain_joules"))
    rows = (
        trials.drop_nulls(["joules", "plain_joules"])
        .group_by(CHOICE, maintain_order=True)
        .agg(energy_j_per_token=drafted / tokens, plain_j_per_token=plain / tokens, ratio=drafted / plain)
    )
    return {"measured": source, "reason": None, "rows": rows.to_dicts()}
