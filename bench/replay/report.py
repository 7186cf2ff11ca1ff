"""Turn the results of a replay into rows for files and tables for people."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.cost_curves import Curve
from bench.replay.rules import RULES
from bench.replay.shards import Group, Key

Row = dict[str, Any]

POSITIONS = (1, 2, 3, 4, 8, 12, 16, 24, 31, 48, 64)
"""Positions in a draft that the table shows; the first is 1."""

NOTES = """\
TPF: tokens per forward pass. speed: speedup over plain decoding; least: the lowest speedup of a pair.
accepted: share of drafted tokens. copied: share of the answer that came from drafts.
steps: share of forward passes that verified a draft.
us/token: processor time of the drafter per token of the answer, not included in the speed.
open: the same per token of the prompt."""


def rows_of(results: Mapping[Key, Group], rules: Sequence[str], curves: Sequence[Curve]) -> list[Row]:
    """Return one row per rule and workload, and one per rule for all workloads if there are several.

    Figures that differ by curve are under "by_curve"; the same fields at top level are those of the first
    curve.
    """
    workloads = list(dict.fromkeys(workload for _, workload, _ in results))
    groups: list[tuple[str, Sequence[str]]] = [(name, [name]) for name in workloads]
    if len(workloads) > 1:
        groups.append(("all", workloads))
    rows = []
    for workload, parts in groups:
        for rule in rules:
            of_curves = {c.name: _together(results[rule, part, c.name] for part in parts) for c in curves}
            rows.append(_row(rule, workload, of_curves))
    return rows


def flat(rows: Iterable[Row]) -> list[Row]:
    """Return the rows for CSV: one per rule, workload and curve."""
    flattened = []
    for row in rows:
        for curve, figures in row["by_curve"].items():
            shared = {key: row[key] for key in ("workload", "drafter", "rule", "used_by", "pairs", "tokens")}
            flattened.append({**shared, "curve": curve, **figures})
    return flattened


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun: "1 pair", "2,000 pairs"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def print_report(console: Console, rows: Sequence[Row], curves: Sequence[Curve]) -> None:
    """Print a table per workload, acceptance by position, and what the names mean."""
    for workload in dict.fromkeys(row["workload"] for row in rows):
        own = [row for row in rows if row["workload"] == workload]
        console.print(_table(workload, own, curves))
    last = [row for row in rows if row["workload"] == rows[-1]["workload"]]
    console.print(_positions(last, curves[0]))
    for name in dict.fromkeys(row["drafter"] for row in rows):
        rule = RULES[name]
        used = f" ({rule.used_by})" if rule.used_by else ""
        console.print(f"{name}: {rule.title}{used}", highlight=False, style="dim")
    for curve in curves:
        line = f"{curve.name}: {curve.kind}; {curve.machine}; {curve.source}"
        console.print(f"{line}; costs above width {curve.widest} are a guess", highlight=False, style="dim")
    console.print(NOTES, style="dim", highlight=False)


def _together(groups: Iterable[Group]) -> Group:
    total = Group()
    for group in groups:
        total.add(group)
    return total


def _row(name: str, workload: str, of_curves: Mapping[str, Group]) -> Row:
    rule, first = RULES[name], next(iter(of_curves.values()))
    by_curve = {curve: _figures(group) for curve, group in of_curves.items()}
    return {
        "drafter": name,
        "rule": rule.title,
        "used_by": rule.used_by,
        "is_hindsight": rule.is_hindsight,
        "memory": "warm" if rule.is_warm else "cold",
        "workload": workload,
        "pairs": first.num_pairs,
        "tokens": first.outcome.num_tokens,
        "prompt_tokens": first.num_prompt_tokens,
        **next(iter(by_curve.values())),
        "speedup": {curve: figures["speedup"] for curve, figures in by_curve.items()},
        "slowest": {curve: figures["slowest"] for curve, figures in by_curve.items()},
        "by_curve": by_curve,
    }


def _figures(group: Group) -> dict[str, Any]:
    outcome = group.outcome
    return {
        "speedup": outcome.num_tokens / group.cost,
        "slowest": group.slowest,
        "tokens_per_forward": outcome.num_tokens / outcome.num_forwards,
        "acceptance": outcome.num_accepted / outcome.num_drafted if outcome.num_drafted else None,
        "acceptance_by_position": [
            right / drafted if drafted else None for drafted, right in outcome.by_position
        ],
        "coverage": outcome.num_accepted / outcome.num_tokens,
        "coverage_of_steps": outcome.num_drafting / outcome.num_forwards,
        "drafter_us_per_token": group.drafter_ns / outcome.num_tokens / 1e3,
        "open_us_per_prompt_token": group.open_ns / group.num_prompt_tokens / 1e3,
    }


def _table(workload: str, rows: Sequence[Row], curves: Sequence[Curve]) -> Table:
    first = rows[0]
    pairs = first["pairs"]
    sizes = f"{first['prompt_tokens'] // pairs:,} tokens in and {first['tokens'] // pairs:,} out on average"
    table = Table(
        "drafter", title=f"{workload or 'pairs'}: {count_text(pairs, 'pair')}, {sizes}", title_justify="left"
    )
    for curve in curves:
        table.add_column(f"{curve.name}\nTPF", justify="right")
        table.add_column("\nspeed", justify="right", style="bold")
        table.add_column("\nleast", justify="right")
    for column in ("accepted", "copied", "steps", "us/token", "open"):
        table.add_column(f"\n{column}", justify="right")
    for row in rows:
        cells = [row["drafter"]]
        for figures in row["by_curve"].values():
            cells += [f"{figures[key]:.2f}" for key in ("tokens_per_forward", "speedup", "slowest")]
        cells += [_share(row[key]) for key in ("acceptance", "coverage", "coverage_of_steps")]
        cells += [f"{row[key]:.1f}" for key in ("drafter_us_per_token", "open_us_per_prompt_token")]
        table.add_row(*cells)
    return table


def _positions(rows: Sequence[Row], curve: Curve) -> Table:
    longest = max(len(row["acceptance_by_position"]) for row in rows)
    shown = [at for at in POSITIONS if at <= longest]
    table = Table("drafter", title=f"Acceptance by position in the draft, {curve.name}", title_justify="left")
    for at in shown:
        table.add_column(str(at), justify="right")
    for row in rows:
        shares = row["acceptance_by_position"]
        table.add_row(
            row["drafter"], *(_share(shares[at - 1] if at <= len(shares) else None) for at in shown)
        )
    return table


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
