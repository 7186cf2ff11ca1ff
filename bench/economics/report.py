"""Report trials: the section of the document, CSV rows, and tables for a terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.economics import figures
from bench.economics.advice import advise, described
from bench.economics.figures import Choice, Fit
from bench.economics.fitting import CONFIDENCE
from bench.economics.trials import CONTROLLED, Trial

INTERVALS = (
    f"{100 * CONFIDENCE:.0f} % intervals: jackknife over chats, Student's t. They cover other chats of these "
    "kinds on this machine, and nothing else."
)


@dataclass(frozen=True, slots=True)
class EnergySource:
    """The state of an EnergyMeter after measuring: what it counted, or why it did not."""

    source: str | None
    reason: str | None


def section(trials: Sequence[Trial], curve: Mapping[int, float], meter: EnergySource) -> dict[str, Any]:
    """Return the "economics" section of a result document.

    curve: seconds of a step by number of drafted tokens, including 0; may be empty.
    """
    plain_tps = _plain_tps(trials)
    fits, slope = figures.fit(trials)
    predicted = figures.predictions(trials, curve)
    errors = figures.errors(predicted)
    choices = figures.choices(trials)
    workloads = dict.fromkeys(choice.workload for choice in choices)
    held_out = {name: found for name in workloads if (found := figures.advised(trials, name)) is not None}
    gains = {name: one for name in workloads if (one := figures.against_auto(trials, name)) is not None}
    needs = figures.model_needs(trials)
    energy = figures.energy(trials, meter.source, meter.reason)
    advice = [
        *advise(fits, slope, choices, held_out, gains, needs),
        *described(errors),
        energy_in_words(energy),
    ]
    return {
        "plain_tps": plain_tps,
        "intervals": INTERVALS,
        "fits": [_fit(one, plain_tps) for one in fits],
        "beta": None
        if slope is None
        else {
            "r": slope.r.value, "beta": slope.beta.value, "low": slope.beta.low, "high": slope.beta.high,
            "r_low": slope.r.low, "r_high": slope.r.high, "off": slope.off,
        },
        "draft_model": [
            {"num_draft_tokens": length, "break_even": one.value, "low": one.low, "high": one.high}
            for length, one in sorted(needs.items())
        ],
        "buckets": figures.buckets(trials),
        "choices": [_choice(one) for one in choices],
        "held_out": [
            {"workload": name, "speedup": one.value, "low": one.low, "high": one.high}
            for name, one in held_out.items()
        ],
        "predicted": predicted,
        "errors": errors,
        "energy": energy,
        "points": rows(trials),
        "advice": advice,
    }  # fmt: skip


def rows(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return a flat row for each trial."""
    return [
        {
            "workload": trial.workload,
            "chat": trial.chat,
            "draft_type": trial.draft_type,
            "num_draft_tokens": trial.num_draft_tokens,
            "is_gated": trial.is_gated,
            "tokens": len(trial.spent.tokens),
            "decode_tps": trial.spent.tps,
            "plain_tps": trial.plain_tps,
            "speedup": trial.speedup,
            "acceptance": trial.acceptance if trial.spent.num_drafted else None,
            "drafted": trial.spent.num_drafted,
            "accepted": trial.spent.num_accepted,
            "forwards": trial.spent.num_forwards,
            "drafter_s": trial.spent.drafter_s,
            "parity": "PASS" if trial.is_equal else "FAIL",
            "energy_j_per_token": None
            if trial.spent.joules is None
            else trial.spent.joules / len(trial.spent.tokens),
        }
        for trial in trials
    ]


def energy_in_words(energy: Mapping[str, Any]) -> str:
    """Describe the energy per token, or why it is unknown."""
    if not energy["rows"]:
        return f"Energy: not measured ({energy['reason'] or 'no answer was measured'})."
    real = [row for row in energy["rows"] if row["draft_type"] != CONTROLLED and row["ratio"]]
    if not real:
        return f"Energy of {energy['measured']}: measured only for controlled drafts."
    least = min(real, key=lambda row: row["ratio"])
    return (
        f"Energy of {energy['measured']}, including prefill and everything else that ran: lowest with "
        f"{least['draft_type']} and {least['num_draft_tokens']} draft tokens on {least['workload']}, "
        f"{least['energy_j_per_token']:.3g} J per token, against {least['plain_j_per_token']:.3g} J plain."
    )


def print_report(console: Console, results: Mapping[str, Any]) -> None:
    """Print the tables and then the advice."""
    console.print(_fits_table(results))
    console.print(_choices_table(results))
    console.print(_buckets_table(results))
    failed = sum(row["parity"] == "FAIL" for row in results["points"])
    count = len(results["points"])
    console.print(
        f"All {count} drafted answers equal the plain ones, token by token."
        if not failed
        else f"{failed} of {count} drafted answers differ from the plain ones; run reprise verify."
    )
    console.print(INTERVALS, style="dim")
    console.print()
    for sentence in results["advice"]:
        console.print(f"- {sentence}", highlight=False, markup=False)


def _fits_table(results: Mapping[str, Any]) -> Table:
    table = Table(
        title=f"Tokens/s = a + b * acceptance, for drafts that are free to make; "
        f"plain decoding: {results['plain_tps']:.1f} tokens/s"
    )
    for name in ("draft tokens", "runs", "a", "b", "r²", "step cost, plain steps", "break-even", "95 %"):
        table.add_column(name, justify="right")
    for fit in results["fits"]:
        table.add_row(
            str(fit["num_draft_tokens"]), str(fit["n"]), f"{fit['a']:.1f}", f"{fit['b']:.1f}",
            f"{fit['r_squared']:.2f}", f"{fit['step_cost']:.2f}", _number(fit["break_even"], 3),
            _ends(fit["low"], fit["high"], 3),
        )  # fmt: skip
    return table


def _choices_table(results: Mapping[str, Any]) -> Table:
    table = Table(title="Draft types and lengths, compared with plain decoding of the same chats")
    for name in ("workload", "drafts", "max draft", "chats", "accepted", "of answer", "speedup", "95 %"):
        table.add_column(name, justify="left" if name in ("workload", "drafts") else "right")
    for one in results["choices"]:
        table.add_row(
            one["workload"], one["draft_type"] + (", gated" if one["is_gated"] else ""),
            str(one["num_draft_tokens"]), str(one["n"]), f"{100 * one['acceptance']:.0f} %",
            f"{100 * one['share_drafted']:.0f} %", f"{one['speedup']:.2f}", _ends(one["low"], one["high"], 2),
        )  # fmt: skip
    return table


def _buckets_table(results: Mapping[str, Any]) -> Table:
    table = Table(title="Speedup by acceptance (number of runs), every draft verified")
    lengths = sorted({row["num_draft_tokens"] for row in results["buckets"]})
    table.add_column("acceptance")
    for length in lengths:
        table.add_column(f"{length} drafted", justify="right")
    for label in dict.fromkeys(row["label"] for row in results["buckets"]):
        by_length = {row["num_draft_tokens"]: row for row in results["buckets"] if row["label"] == label}
        cells = [
            f"{by_length[length]['speedup']:.2f} ({by_length[length]['n']})" if length in by_length else "-"
            for length in lengths
        ]
        table.add_row(label, *cells)
    return table


def _plain_tps(trials: Sequence[Trial]) -> float:
    """Return the plain speed beside the controlled trials; a harmonic mean, because speeds are rates."""
    chosen = [trial for trial in trials if trial.draft_type == CONTROLLED] or list(trials)
    return len(chosen) / sum(1 / trial.plain_tps for trial in chosen) if chosen else 0.0


def _fit(fit: Fit, plain_tps: float) -> dict[str, Any]:
    even = fit.break_even
    return {
        "num_draft_tokens": fit.num_draft_tokens,
        "a": fit.a.value * plain_tps,
        "b": fit.b.value * plain_tps,
        "break_even": even.value if isfinite(even.value) else None,
        "low": even.low,
        "high": even.high,
        "n": fit.num_trials,
        "r_squared": fit.r_squared,
        "step_cost": fit.step_cost,
    }


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "workload": choice.workload,
        "draft_type": choice.draft_type,
        "num_draft_tokens": choice.num_draft_tokens,
        "is_gated": choice.is_gated,
        "n": choice.num_chats,
        "speedup": choice.speedup.value,
        "low": choice.speedup.low,
        "high": choice.speedup.high,
        "acceptance": choice.acceptance,
        "share_drafted": choice.share_drafted,
        "pays": choice.pays,
    }


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _ends(low: float | None, high: float | None, digits: int) -> str:
    return "-" if low is None or high is None else f"{low:.{digits}f} to {high:.{digits}f}"
