"""Compute the economics section of a result document: when drafting pays, according to the trials.

A trial is a row as bench.economics.trials makes it; several are a data frame.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import polars as pl

from bench.economics.advice import advise
from bench.economics.trials import CONTROLLED
from bench.experiment import Row
from bench.statistics import Estimate, Mask, break_even, fit_line, geometric_mean_of, jackknife, mean_of

Trials = pl.DataFrame
INTERVALS = (
    "95 % intervals: jackknife over chats, Student's t. They cover other chats of these kinds on this "
    "machine, and nothing else."
)
CHOICE = ("workload", "draft_type", "num_draft_tokens", "is_gated")
_IS_CONTROLLED = pl.col("draft_type") == CONTROLLED


def frame_of(trials: Sequence[Row]) -> Trials:
    """Return trials as a data frame."""
    types = dict.fromkeys(("joules", "plain_joules", "acceptance"), pl.Float64)
    return pl.DataFrame(trials, infer_schema_length=None, schema_overrides=types)


def section(
    trials: Trials, curve: Mapping[int, float], energy_of: str | None, no_energy: str | None
) -> dict[str, Any]:
    """Return the "economics" section of a result document.

    curve: seconds of a step by number of drafted tokens, including 0; may be empty.
    energy_of, no_energy: what an EnergyMeter counted, or why it did not.
    """
    # A harmonic mean, because speeds are rates.
    plain_tps = len(trials) / (1 / trials["plain_tps"]).sum()
    fits, slope = fit(trials)
    predicted = predictions(trials, curve)
    found: dict[str, Any] = {
        "plain_tps": plain_tps, "intervals": INTERVALS,
        "fits": [one | {"a": one["a"] * plain_tps, "b": one["b"] * plain_tps} for one in fits],
        "beta": slope, "draft_model": model_needs(trials), "buckets": buckets(trials),
        "choices": choices(trials), "predicted": predicted, "errors": errors(predicted),
        "energy": energy(trials, energy_of, no_energy),
        "points": trials.drop("widths", "joules", "plain_joules").to_dicts(),
    }  # fmt: skip
    return found | {"advice": advise(found["choices"], held_out(trials), slope)}


def estimated(one: Estimate, name: str = "speedup") -> Row:
    """Return an estimate as fields of a row."""
    return {name: one.value if np.isfinite(one.value) else None, "low": one.low, "high": one.high}


def fit(trials: Trials) -> tuple[list[Row], Row | None]:
    """Return lines speedup = a + b * acceptance, and the line r + beta * length through their break-evens.

    There is a line for each draft length of the controlled trials; the last one needs two break-evens.
    step_cost: of a step with this many drafted tokens, in plain steps. It commits 1 + length * acceptance
    tokens, and the fit is most reliable in its middle.
    """
    frame = trials.filter(_IS_CONTROLLED).with_columns(pl.col("acceptance").fill_null(0.0))
    of, x, y = (frame[name].to_numpy() for name in ("num_draft_tokens", "acceptance", "speedup"))
    lengths = np.unique(of)

    def estimate(mask: Mask) -> list[float]:
        lines = [fit_line(x[mask & (of == length)], y[mask & (of == length)]) for length in lengths]
        evens = np.array([break_even(*line) for line in lines])
        known = np.isfinite(evens)
        slope = fit_line(lengths[known], evens[known]) if known.sum() > 1 else (float("nan"),) * 2
        return [*slope, *evens, *chain(*lines)]

    if frame.is_empty():
        return [], None
    r, beta, *estimates = jackknife(frame["chat"], estimate)
    evens, lines = estimates[: len(lengths)], [one.value for one in estimates[len(lengths) :]]
    fits = [
        {"num_draft_tokens": length, "a": a, "b": b, **estimated(even, "break_even"),
         "n": int((of == length).sum()), "step_cost": (1 + length / 2) / (a + b / 2)}
        for length, even, a, b in zip(lengths.tolist(), evens, lines[::2], lines[1::2], strict=True)
    ]  # fmt: skip
    return fits, {"r": r.value, **estimated(beta, "beta")} if np.isfinite(r.value) else None


def buckets(trials: Trials) -> list[Row]:
    """Return speedups of forced trials by acceptance and draft length, without those that had no draft."""
    start, speedup = (pl.col("acceptance") * 5).floor().clip(0, 4).cast(pl.Int64) * 20, pl.col("speedup")
    return (
        trials.filter(~pl.col("is_gated") & (pl.col("drafted") > 0))
        .group_by("num_draft_tokens", start.alias("start"))
        .agg(n=pl.len(), speedup=speedup.log().mean().exp(), lowest=speedup.min(), highest=speedup.max())
        .sort("start", "num_draft_tokens")
        .with_columns(label=pl.format("{} to {} %", "start", pl.col("start") + 20))
        .to_dicts()
    )


def predictions(trials: Trials, curve: Mapping[int, float]) -> list[Row]:
    """Return the speedups that step costs measured beforehand predict, and the measured ones.

    A trial has as many steps of each width as it had; its drafter's time is added.
    """
    rows = []
    for trial in trials.filter(pl.col("drafted") > 0).iter_rows(named=True) if curve else ():
        costs = np.interp(range(len(trial["widths"])), sorted(curve), [curve[one] for one in sorted(curve)])
        steps = float(costs @ trial["widths"]) / curve[0] + trial["drafter_s"] * trial["plain_tps"]
        predicted = {"by": "cost curve", "predicted": trial["tokens"] / steps, "measured": trial["speedup"]}
        rows.append({name: trial[name] for name in (*CHOICE, "chat")} | predicted)
    return rows


def errors(predicted: Sequence[Row]) -> list[Row]:
    """Return the errors of predictions: median of |predicted / measured - 1|, and mean with its sign."""
    off = pl.col("predicted") / pl.col("measured") - 1
    frame = pl.DataFrame(predicted or {"by": [], "draft_type": [], "predicted": [], "measured": []})
    groups = frame.group_by("by", "draft_type", maintain_order=True)
    return groups.agg(n=pl.len(), median_error=off.abs().median(), mean_error=off.mean()).to_dicts()


def choices(trials: Trials) -> list[Row]:
    """Return every draft type and length that a user could choose, by workload.

    pays: whether it is faster than plain decoding with 95 % confidence.
    """
    accepted, drafted, tokens = (pl.col(name).sum() for name in ("accepted", "drafted", "tokens"))
    groups = trials.filter(~_IS_CONTROLLED).group_by(CHOICE, maintain_order=True)
    shares = {"acceptance": (accepted / drafted).fill_nan(0.0), "share_drafted": accepted / tokens}
    rows = groups.agg("speedup", n=pl.len(), **shares).to_dicts()
    rows = [row | estimated(geometric_mean_of(row["speedup"])) for row in rows]
    return [row | {"pays": (row["low"] or 0.0) > 1.0} for row in rows]


def model_needs(trials: Trials) -> list[Row]:
    """Return the acceptance from which the draft model pays, by draft length.

    Its time is part of its steps: if a step takes as long as c plain ones, it pays from (c - 1) / length.
    """
    length, cost = pl.col("num_draft_tokens"), pl.col("tokens") / pl.col("speedup") / pl.col("forwards")
    needs = (
        trials.filter((pl.col("draft_type") == "draft-model") & ~pl.col("is_gated"))
        .group_by(length, "chat")
        .agg(need=((cost - 1) / length).mean())
        .group_by(length)
        .agg("need")
        .sort(length)
    )
    return [{"num_draft_tokens": k, **estimated(mean_of(of), "break_even")} for k, of in needs.iter_rows()]


def held_out(trials: Trials) -> dict[str, Estimate]:
    """Estimate by cross-validation how fast each workload's best draft type and length is, over auto.

    The best of many choices looks better than it is on the chats that it was chosen by. So for each chat the
    choice is the one that is best on the other chats; not drafting is a choice too. Without auto, it is the
    speedup over plain decoding. Workloads with fewer than three chats are left out.
    """
    found = {}
    kind = pl.format("{} {}", "draft_type", "num_draft_tokens")
    logs = trials.filter(~_IS_CONTROLLED).select(
        "workload", "chat", "is_gated", pl.col("speedup").log(), kind=kind
    )
    for (workload,), group in logs.sort("chat").group_by(["workload"], maintain_order=True):
        auto = group.filter("is_gated")["speedup"].to_numpy()
        fixed = group.filter(~pl.col("is_gated")).pivot("kind", index="chat", values="speedup").drop("chat")
        if len(fixed) < 3 or len(auto) not in (0, len(fixed)):
            continue
        each = np.column_stack([np.zeros(len(fixed)), fixed.to_numpy()])
        chosen = (each.sum(axis=0) - each).argmax(axis=1)
        gains = each[np.arange(len(each)), chosen] - (auto if len(auto) else 0.0)
        found[str(workload)] = geometric_mean_of(np.exp(gains))
    return found


def energy(trials: Trials, source: str | None, reason: str | None) -> dict[str, Any]:
    """Return the joules per token, prefill included, of each choice and of plain decoding beside it."""
    if source is None:
        return {"measured": "not measured", "reason": reason, "rows": []}
    tokens, drafted, plain = (pl.col(name).sum() for name in ("tokens", "joules", "plain_joules"))
    metered = trials.drop_nulls(["joules", "plain_joules"]).group_by(CHOICE, maintain_order=True)
    rows = metered.agg(
        energy_j_per_token=drafted / tokens, plain_j_per_token=plain / tokens, ratio=drafted / plain
    )
    return {"measured": source, "reason": None, "rows": rows.to_dicts()}
