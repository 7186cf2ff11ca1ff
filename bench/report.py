"""The results of `reprise bench serve`, as tables and as JSON with every request."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.machine import Machine
from bench.measurement import Round
from bench.statistics import Percentiles
from bench.summary import Comparison, Line

FORMAT = 1
"""Version of the JSON; raised when a field changes its meaning or is removed."""

NOTES = (
    "tokens/s: all completion tokens divided by the wall time of a round; median, lowest and highest round.",
    "failed, refused, early: counts over all requests, warm-up included; refused (429) requests also failed.",
    "first token: time from opening the connection to the first text. inter-token: gap between two reads",
    "with text, divided among the tokens of the second read; each token counts once.",
    "ratio: of the medians over rounds. per round: lowest and highest ratio of a round.",
)


def print_report(
    console: Console,
    machine: Machine,
    lines: Sequence[Line],
    comparisons: Sequence[Comparison],
    notes: Sequence[str],
) -> None:
    """Print machine, figures, ratios, explanations and notes."""
    console.print(_machine_text(machine), highlight=False)
    console.print(_throughput(lines))
    console.print(_latency(lines))
    if comparisons:
        console.print(_ratios(comparisons))
    for sentence in NOTES:
        console.print(sentence, style="dim", highlight=False)
    for note in notes:
        console.print(f"! {escape(note)}", style="yellow", highlight=False)


def as_json(
    machine: Machine,
    settings: dict[str, Any],
    rounds: Sequence[Round],
    lines: Sequence[Line],
    comparisons: Sequence[Comparison],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Return everything as JSON values: rounds contain requests, requests contain arrivals of text."""
    return {
        "benchmark": "serve",
        "format": FORMAT,
        "machine": machine,
        "settings": settings,
        "levels": [asdict(line) for line in lines],
        "comparisons": [asdict(comparison) for comparison in comparisons],
        "notes": list(notes),
        "rounds": [asdict(one) for one in rounds],
    }


def round_text(one: Round) -> str:
    """Describe a finished round in one line."""
    streams = "1 stream" if one.concurrency == 1 else f"{one.concurrency} streams"
    number = f"round {one.number}" if one.number else "warm-up"
    speed = f"{one.tokens_per_s:.1f} tokens/s" if one.tokens_per_s else "no tokens"
    failed = len(one.measurements) - len(one.succeeded)
    return f"{streams}, {number}, {one.side}: {speed}" + (f", {failed} failed" if failed else "")


def _machine_text(machine: Machine) -> str:
    gib = float(machine["memory_bytes"] or 0) / 2**30
    return escape(
        f"{machine['cpu']}, {machine['cores']} cores, {gib:.1f} GiB, {machine['system']}, "
        f"load {machine['load_at_start']} at start\n"
        f"Python {machine['python']}, mlx {machine['mlx']}, mlx-lm {machine['mlx_lm']}, "
        f"reprise {machine['reprise']}"
    )


# Two tables, so that both fit a terminal of 80 columns.
def _throughput(lines: Sequence[Line]) -> Table:
    table = _table(
        "streams", "server", "requests", "tokens/s", "lowest to highest", "failed", "refused", "early"
    )
    for line in lines:
        table.add_row(
            str(line.concurrency),
            escape(line.side),
            str(line.num_requests),
            f"{median(line.tokens_per_s):.1f}",
            f"{min(line.tokens_per_s):.1f} to {max(line.tokens_per_s):.1f}",
            f"[bold red]{line.num_failed}[/]" if line.num_failed else "0",
            f"[yellow]{line.num_refused}[/]" if line.num_refused else "0",
            f"[yellow]{line.num_ended_early}[/]" if line.num_ended_early else "0",
        )
    return table


def _latency(lines: Sequence[Line]) -> Table:
    table = _table(
        "streams", "server", "first token, ms\np50 / p95 / p99", "inter-token, ms\np50 / p95 / p99"
    )
    for line in lines:
        first_token, inter_token = _milliseconds(line.first_token_s, 0), _milliseconds(line.inter_token_s, 2)
        table.add_row(str(line.concurrency), escape(line.side), first_token, inter_token)
    return table


def _ratios(comparisons: Sequence[Comparison]) -> Table:
    table = _table("streams", "quantity", "against", "ratio", "per round", "better")
    for comparison in comparisons:
        ratio = comparison.ratio
        table.add_row(
            str(comparison.concurrency),
            comparison.quantity,
            escape(comparison.against),
            f"{ratio.of_medians:.3f}" if ratio else "none",
            f"{ratio.lowest:.3f} to {ratio.highest:.3f}" if ratio else "none",
            "above 1" if comparison.higher_is_better else "below 1",
        )
    return table


def _table(*headings: str) -> Table:
    table = Table()
    for heading in headings:
        is_words = heading in ("server", "quantity", "against", "better")
        table.add_column(heading, justify="left" if is_words else "right", overflow="fold")
    return table


def _milliseconds(seconds: Percentiles | None, digits: int) -> str:
    if seconds is None:
        return "none"
    return " / ".join(f"{value * 1000:.{digits}f}" for value in (seconds.p50, seconds.p95, seconds.p99))
