"""Compute the economics section of a result document: when drafting pays, and which drafts to use.

A trial is a row as reprise.bench.economics.trials makes it; several are a data frame.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from reprise.bench.economics.trials import CONTROLLED
from reprise.bench.experiment import Row
from reprise.bench.statistics import (
    Estimate,
    Mask,
    break_even,
    fit_line,
    geometric_mean_of,
    jackknife,
    mean_of,
)
from reprise.bench.tables import interval

Trials = pl.DataFrame
INTERVALS = "95 % intervals (jackknife over chats, Student's t) hold for such chats on this machine only."
CHOICE = ("workload", "draft_type", "num_draft_tokens", "is_gated")
WORTH = 1.03
"""One choice is advised over another only if it is faster by this factor."""
_IS_CONTROLLED = pl.col("draft_type") == CONTROLLED


def section(
    rows: Sequence[Row], curve: Mapping[int, float], energy_of: str | None, no_energy: str | None
) -> dict[str, Any]:
    """Return the "economics" section of a result document. rows: the trials.

    curve: seconds of a step by number of drafted tokens, including 0.
    energy_of, no_energy: what an EnergyMeter counted, or why it counted nothing.
    """
    trials = pl.DataFrame(rows, infer_schema_length=None)
    # A harmonic mean, because speeds are rates.
    plain_tps = len(trials) / (1 / trials["plain_tps"]).sum()
    (fits, slope), compared, predicted = fit(trials), choices(trials), predictions(trials, curve)
    return {
        "plain_tps": plain_tps, "intervals": INTERVALS,
        "fits": [one | {"a": one["a"] * plain_tps, "b": one["b"] * plain_tps} for one in fits],
        "beta": slope, "draft_model": model_needs(trials), "buckets": buckets(trials),
        "choices": compared, "predicted": predicted.to_dicts(), "errors": errors(predicted),
        "energy": energy(trials, energy_of, no_energy),
        "points": trials.drop("drafts", "joules", "plain_joules").to_dicts(),
        "advice": advise(compared, held_out(trials), slope),
    }  # fmt: skip


def estimated(one: Estimate, name: str = "speedup") -> Row:
    """Return an estimate and the ends of its interval as fields of a row."""
    return {name: one.value if np.isfinite(one.value) else None, "low": one.low, "high": one.high}


def fit(trials: Trials) -> tuple[list[Row], Row | None]:
    """Fit speedup = a + b * acceptance for each draft length, and break-even = r + beta * length over them.

    Uses the controlled trials. The second line is None with fewer than two break-even acceptances.
    step_cost: of a step with a draft of this length, in plain steps. A step commits 1 + length * acceptance
    tokens; the cost is read at an acceptance of 1/2, where the fit is best.
    """
    frame = trials.filter(_IS_CONTROLLED, pl.col("drafted") > 0)
    of, x, y = (frame[name].to_numpy() for name in ("num_draft_tokens", "acceptance", "speedup"))
    lengths = np.unique(of)

    def lines(mask: Mask) -> list[tuple[float, float]]:
        return [fit_line(x[mask & (of == length)], y[mask & (of == length)]) for length in lengths]

    def estimate(mask: Mask) -> list[float]:
        evens = np.array([break_even(*line) for line in lines(mask)])
        known = np.isfinite(evens)
        slope = fit_line(lengths[known], evens[known]) if known.sum() > 1 else (np.nan, np.nan)
        return [*slope, *evens]

    r, beta, *evens = jackknife(frame["chat"], estimate)
    fits = [
        {"num_draft_tokens": length, "a": a, "b": b, **estimated(even, "break_even"),
         "n": int((of == length).sum()), "step_cost": (1 + length / 2) / (a + b / 2)}
        for length, (a, b), even in zip(lengths.tolist(), lines(np.full(len(of), True)), evens, strict=True)
    ]  # fmt: skip
    return fits, {"r": r.value, **estimated(beta, "beta")} if np.isfinite(r.value) else None


def buckets(trials: Trials) -> list[Row]:
    """Return the speedups by acceptance and draft length of trials in which every draft was verified."""
    start, speedup = (pl.col("acceptance") * 5).floor().clip(0, 4).cast(pl.Int64) * 20, pl.col("speedup")
    return (
        trials.filter(~pl.col("is_gated"), pl.col("drafted") > 0)
        .group_by("num_draft_tokens", start.alias("start"))
        .agg(n=pl.len(), speedup=speedup.log().mean().exp(), lowest=speedup.min(), highest=speedup.max())
        .sort("start", "num_draft_tokens")
        .with_columns(label=pl.format("{} to {} %", "start", pl.col("start") + 20))
        .to_dicts()
    )


def predictions(trials: Trials, curve: Mapping[int, float]) -> pl.DataFrame:
    """Return the speedup of each trial with drafts, as measured and as predicted by step costs.

    The prediction takes the trial's own number of steps of each width, and adds its drafter's time.
    curve: seconds of a step by number of drafted tokens, measured before the trials.
    """
    lengths, seconds = zip(*sorted(curve.items()), strict=True)
    drafted = trials.filter(pl.col("drafted") > 0)
    # What a step costs more for each further token that was drafted.
    more = [
        float(np.diff(np.interp(range(len(counts) + 1), lengths, seconds)) @ counts)
        for counts in drafted["drafts"].to_list()
    ]
    steps = pl.col("forwards") + pl.Series(more, dtype=pl.Float64) / curve[0]
    predicted = pl.col("tokens") / (steps + pl.col("drafter_s") * pl.col("plain_tps"))
    return drafted.select(*CHOICE, "chat", by=pl.lit("cost curve"), predicted=predicted, measured="speedup")


def errors(predicted: pl.DataFrame) -> list[Row]:
    """Return the errors of each draft type's predictions: median of |predicted / measured - 1|, signed mean.

    predicted: see predictions().
    """
    off = pl.col("predicted") / pl.col("measured") - 1
    groups = predicted.group_by("by", "draft_type", maintain_order=True)
    return groups.agg(n=pl.len(), median_error=off.abs().median(), mean_error=off.mean()).to_dicts()


def choices(trials: Trials) -> list[Row]:
    """Return every draft type and length that a user could choose, by workload.

    pays: whether the choice is faster than plain decoding with 95 % confidence.
    """
    accepted, drafted, tokens = (pl.col(name).sum() for name in ("accepted", "drafted", "tokens"))
    groups = trials.filter(~_IS_CONTROLLED).group_by(CHOICE, maintain_order=True)
    shares = {"acceptance": (accepted / drafted).fill_nan(0.0), "share_drafted": accepted / tokens}
    rows = groups.agg("speedup", n=pl.len(), **shares).to_dicts()
    rows = [row | estimated(geometric_mean_of(row["speedup"])) for row in rows]
    return [row | {"pays": (row["low"] or 0.0) > 1.0} for row in rows]


def model_needs(trials: Trials) -> list[Row]:
    """Return the acceptance from which the draft model pays, by draft length.

    The draft model's time is part of the steps: if a step takes as long as c plain steps, the draft model
    pays from an acceptance of (c - 1) / length.
    """
    length, cost = pl.col("num_draft_tokens"), pl.col("tokens") / pl.col("speedup") / pl.col("forwards")
    of_model = trials.filter(pl.col("draft_type") == "draft-model").select(length, need=(cost - 1) / length)
    needs = of_model.group_by(length).agg("need").sort(length)
    return [{"num_draft_tokens": k, **estimated(mean_of(of), "break_even")} for k, of in needs.iter_rows()]


def held_out(trials: Trials) -> dict[str, Row]:
    """Estimate by cross-validation the speedup of each workload's best draft type and length over auto.

    The best of many choices looks better than it is on the chats that it was chosen by. So for each chat the
    choice is the one that is best on the other chats; not drafting is a choice too. Workloads with fewer than
    three chats are left out.
    """
    found = {}
    choice = pl.when("is_gated").then(pl.lit("auto")).otherwise(pl.format("{} {}", *CHOICE[1:3]))
    logs = trials.filter(~_IS_CONTROLLED).with_columns(pl.col("speedup").log(), choice=choice)
    for (workload,), group in logs.group_by(["workload"], maintain_order=True):
        table = group.pivot("choice", index="chat", values="speedup").drop("chat").drop_nulls()
        if len(table) >= 3 and "auto" in table.columns:
            each = table.with_columns(auto=0.0).to_numpy()
            chosen = (each.sum(axis=0) - each).argmax(axis=1)
            gains = each[np.arange(len(each)), chosen] - table["auto"].to_numpy()
            found[str(workload)] = estimated(geometric_mean_of(np.exp(gains)))
    return found


def energy(trials: Trials, source: str | None, reason: str | None) -> dict[str, Any]:
    """Return the joules per token, prefill included, of each choice and of the plain runs around it.

    source: what was counted; None if nothing was, for the reason given.
    """
    if source is None:
        return {"measured": "not measured", "reason": reason, "rows": []}
    tokens, drafted, plain = (pl.col(name).sum() for name in ("tokens", "joules", "plain_joules"))
    metered = trials.drop_nulls(["joules", "plain_joules"]).group_by(CHOICE, maintain_order=True)
    rows = metered.agg(
        energy_j_per_token=drafted / tokens, plain_j_per_token=plain / tokens, ratio=drafted / plain
    )
    return {"measured": source, "reason": None, "rows": rows.to_dicts()}


def advise(choices: Sequence[Row], over_auto: Mapping[str, Row], slope: Row | None) -> list[str]:
    """Say which draft type and length to use, over all workloads and then for each.

    over_auto: see held_out(). slope: the line of break-evens by draft length; see fit().
    """
    ranked = sorted(choices, key=lambda one: one["speedup"])
    best = {one["workload"]: one for one in ranked if not one["is_gated"]}
    autos = {one["workload"]: one for one in ranked if one["is_gated"]}
    unsure = [name for name, one in best.items() if one["share_drafted"] and (one["high"] or 2.0) > WORTH]
    said = [
        f"For chats like {name}, use --draft-type {best[name]['draft_type']} --num-draft-tokens "
        f"{best[name]['num_draft_tokens']}: {_times(gain)} as fast as auto on held-out chats."
        for name, gain in over_auto.items()
        if best[name]["pays"] and gain["speedup"] > WORTH and (gain["low"] or 0.0) > 1.0
    ]
    if said:
        said += ["For other or mixed chats, use --draft-type auto."] if len(said) < len(best) else []
    elif any(one["pays"] and one["speedup"] > WORTH for one in choices):
        said.append(
            "Use --draft-type auto, the default, which stops drafting where it does not pay: no fixed type "
            f"and length is reliably more than {100 * (WORTH - 1):.0f} % faster on any of these workloads."
        )
    elif unsure:
        said.append(
            f"These runs vary too much to say whether drafting pays on {', '.join(unsure)}. Repeat them on "
            "an idle machine, with more --chats or --max-tokens."
        )
    else:
        slow = [1 - auto["speedup"] for auto in autos.values() if (auto["high"] or 1.0) < 1.0]
        slower = f"auto is slower, by up to {max(slow):.0%}" if slow else "auto is not slower"
        said.append(f"Drafting pays on none of these workloads: use --draft-type none; {slower}.")
    for name, one in best.items():
        which = f"{one['draft_type']} with drafts of {one['num_draft_tokens']}"
        auto = f"; auto: {_times(autos[name])}" if name in autos else ""
        said.append(f"{name}: {which} is the best fixed choice, {_times(one)} as fast as plain{auto}.")
    if slope:
        points = {name: value and 100 * value for name, value in slope.items()}
        said.append(
            "Each additional draft token changes the acceptance needed to break even by "
            f"{points['beta']:+.1f} percentage points{_ends(points, 1)}: "
            f"alpha = {slope['r']:.3f} {slope['beta']:+.4f} k."
        )
    return said


def _times(one: Row) -> str:
    return f"{one['speedup']:.2f} times{_ends(one)}"


def _ends(one: Row, digits: int = 2) -> str:
    return "" if one["low"] is None else f" ({interval(one, digits=digits)})"
