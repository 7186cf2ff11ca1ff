"""Report trials: the section of the document, CSV rows, and tables for a terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from rich.console import Console

from bench.economics import figures
from bench.economics.advice import advise, described
from bench.economics.figures import Choice, Fit
from bench.economics.trials import CONTROLLED, Trial
from bench.statistics import CONFIDENCE, ratio
from bench.tables import Column, interval, print_rows

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
    names = ("workload", "chat", "draft_type", "num_draft_tokens", "is_gated")
    return [
        {name: getattr(trial, name) for name in names}
        | {
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
            "energy_j_per_token": ratio(trial.spent.joules, len(trial.spent.tokens)),
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


FITS = [
    Column("num_draft_tokens", "draft tokens"), Column("n", "runs"), Column("a", "a", "1"),
    Column("b", "b", "1"), Column("r_squared", "r²", "2"),
    Column("step_cost", "step cost,\nplain steps", "2"), Column("break_even", "break-even", "3"),
    Column(lambda row: interval(row, digits=3), "95 %"),
]  # fmt: skip
CHOICES = [
    Column("workload", "workload"),
    Column(lambda row: row["draft_type"] + (", gated" if row["is_gated"] else ""), "drafts"),
    Column("num_draft_tokens", "max draft"), Column("n", "chats"), Column("acceptance", "accepted", "%"),
    Column("share_drafted", "of answer", "%"), Column("speedup", "speedup", "2"), Column(interval, "95 %"),
]  # fmt: skip


def print_report(console: Console, results: Mapping[str, Any]) -> None:
    """Print the tables and then the advice."""
    plain = f"{results['plain_tps']:.1f} tokens/s"
    title = f"Tokens/s = a + b * acceptance, for drafts that are free to make; plain decoding: {plain}"
    print_rows(console, results["fits"], FITS, title)
    title = "Draft types and lengths, compared with plain decoding of the same chats"
    print_rows(console, results["choices"], CHOICES, title)
    lengths = sorted({row["num_draft_tokens"] for row in results["buckets"]})
    cells = {
        (row["label"], row["num_draft_tokens"]): f"{row['speedup']:.2f} ({row['n']})"
        for row in results["buckets"]
    }
    buckets = [
        {"acceptance": label} | {str(length): cells.get((label, length)) for length in lengths}
        for label in dict.fromkeys(row["label"] for row in results["buckets"])
    ]
    columns = [Column("acceptance", "acceptance"), *(Column(str(one), f"{one} drafted") for one in lengths)]
    print_rows(console, buckets, columns, "Speedup by acceptance (number of runs), every draft verified")
    failed = sum(row["parity"] == "FAIL" for row in results["points"])
    count = len(results["points"])
    console.print(
        f"All {count} drafted answers equal the plain ones, token by token."
        if not failed
        else f"{failed} of {count} drafted answers differ from the plain ones; run reprise verify."
    )
    console.print(INTERVALS, style="dim")
    for sentence in results["advice"]:
        console.print(f"- {sentence}", highlight=False, markup=False)


def _plain_tps(trials: Sequence[Trial]) -> float:
    """Return the plain speed beside the controlled trials; a harmonic mean, because speeds are rates."""
    chosen = [trial for trial in trials if trial.draft_type == CONTROLLED] or list(trials)
    return len(chosen) / sum(1 / trial.plain_tps for trial in chosen) if chosen else 0.0


def _fit(fit: Fit, plain_tps: float) -> dict[str, Any]:
    even = fit.break_even
    return {
        "num_draft_tokens": fit.num_draft_tokens, "a": fit.a.value * plain_tps,
        "b": fit.b.value * plain_tps, "break_even": even.value if isfinite(even.value) else None,
        "low": even.low, "high": even.high, "n": fit.num_trials, "r_squared": fit.r_squared,
        "step_cost": fit.step_cost,
    }  # fmt: skip


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "workload": choice.workload, "draft_type": choice.draft_type,
        "num_draft_tokens": choice.num_draft_tokens, "is_gated": choice.is_gated, "n": choice.num_chats,
        "speedup": choice.speedup.value, "low": choice.speedup.low, "high": choice.speedup.high,
        "acceptance": choice.acceptance, "share_drafted": choice.share_drafted, "pays": choice.pays,
    }  # fmt: skip
