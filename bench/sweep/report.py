"""Print the results of a sweep: tables, each with a sentence that sums it up."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from rich.console import Console

from bench.experiment import Row
from bench.sweep.parts import COLD, POINT, SAME, WARM, best_of, default_point, overall, text_of
from bench.sweep.tables import smallest_without_loss
from bench.tables import Column, pivoted, print_rows
from config.settings import Settings

HELD = [
    Column("entries", "entries", "0"), Column("ngram_size", "n-gram\nsize"),
    Column("occupancy", "occupied", "%"), Column("overwritten", "over-\nwritten", "%"),
    Column("foreign_drafts", "foreign\ndrafts", "%"), Column("known", "known", "%"),
    Column("known_again", "known in\nrepeated texts", "%"), Column("acceptance", "accepted", "%"),
    Column("tokens_per_forward", "tokens/\nforward", "2"), Column("speedup", "speedup", "2"),
]  # fmt: skip
WARM_KEYS = [
    Column("pair", "model"), Column("workload", "workload"), Column("draft_type", "drafts"),
    Column("memory", "table"),
]  # fmt: skip
NOTES = {
    "warm": "Replayed speedup; measured: on the engine, over all turns. Cold: the table is empty before each "
    "chat. Warm: it holds the first model's answers to all chats, or to all other chats.",
    "ngram_sizes": "ngram-mod alone, replayed. overwritten: writes that replaced another n-gram's token. "
    "foreign drafts: drafted tokens of another n-gram. known: answer tokens that the table predicts.",
    "gate": "Draft type auto, replayed speedup: mean over workloads, and the lowest. Below the threshold, "
    "gate auto starts with short drafts and learns; gate on never drafts.",
    "grid": "Replayed speedup: geometric mean over workloads, and in parentheses the lowest.",
    "measured": "Speedup measured on the engine, in parentheses the replayed one; the default comes first.",
}


def print_report(console: Console, section: Mapping[str, Any], settings: Settings) -> None:
    """Print all parts in the section. settings: the server's defaults, to compare the best with."""
    for name, show in (
        ("warm", _print_warm), ("table_sizes", _print_tables), ("ngram_sizes", _print_ngram_sizes),
        ("gate", _print_gate), ("grid", _print_grid),
    ):  # fmt: skip
        if name in section:
            show(console, section[name], settings)
            if name in NOTES:
                _say(console, NOTES[name])
    if section.get("measured"):
        _print_measured(console, section["measured"], section["grid"])


def _say(console: Console, sentence: str) -> None:
    console.print(f"\n{sentence}", highlight=False, markup=False)


def _mean_and_lowest(row: Mapping[str, Any]) -> str:
    return f"{row['mean']:.2f} ({row['lowest']:.2f})"


def _print_grid(console: Console, rows: Sequence[Row], settings: Settings) -> None:
    means = overall(rows)
    for draft_type in dict.fromkeys(row["draft_type"] for row in rows):
        best, default = best_of(rows, draft_type), default_point(draft_type, settings)
        sentence = f"{draft_type}: the best is {text_of(best)} with {best['mean']:.2f}"
        for one in means:
            if all(one[name] == default[name] for name in POINT):
                sentence += f"; the default, {text_of(default)}, has {one['mean']:.2f}"
        _say(console, f"{sentence}.")
        own = [one | {"size": one["ngram_size"] or "-"} for one in means if one["draft_type"] == draft_type]
        own.sort(key=lambda one: (one["num_draft_tokens"], str(one["size"]).zfill(3)))
        size = [Column("size", "n-gram size")]
        print_rows(console, *pivoted(own, size, "num_draft_tokens", _mean_and_lowest, "{} tokens"))


def _print_measured(console: Console, measured: Sequence[Row], replayed: Sequence[Row]) -> None:
    by_replay = {(text_of(row), row["workload"]): row["speedup"] for row in replayed}
    wrong = {text_of(row) for row in measured if row["parity"] != "PASS"}
    rows = [
        row | {"point": text_of(row), "equal": "NO" if text_of(row) in wrong else "yes"} for row in measured
    ]
    _say(console, NOTES["measured"])
    print_rows(console, *pivoted(
        rows, [Column("point", ""), Column("equal", "equal")], "workload",
        lambda row: f"{row['speedup']:.2f} ({by_replay.get((row['point'], row['workload'])) or 0:.2f})",
    ))  # fmt: skip
    if wrong:
        _say(console, "NO: an answer differs from the plain one; run reprise bench decode for details.")


def _print_tables(console: Console, rows: Sequence[Row], settings: Settings) -> None:
    for requests in dict.fromkeys(row["requests"] for row in rows):
        of_size = [row for row in rows if row["requests"] == requests]
        tokens = f"{requests:,} requests, {of_size[0]['traffic_tokens'] / 1e6:.1f} million tokens"
        largest = max(row["entries"] for row in of_size)
        _say(
            console,
            f"{tokens}: the smallest table as good as {largest:,} entries has "
            f"{smallest_without_loss(of_size):,}; the default is {settings.ngram_table_entries:,}.",
        )
        print_rows(console, of_size, HELD)


def _print_ngram_sizes(console: Console, rows: Sequence[Row], settings: Settings) -> None:
    best = max(rows, key=lambda row: round(row["speedup"], 3))
    where = f"{best['requests']:,} requests, {best['entries']:,} entries"
    found = f"the best n-gram size is {best['ngram_size']}; the default is {settings.ngram_mod_size}"
    _say(console, f"{where}: {found}.")
    print_rows(console, rows, HELD)


def _print_gate(console: Console, rows: Sequence[Row], settings: Settings) -> None:
    means = overall(rows, ("threshold", "gate"))
    auto = {one["threshold"]: one["mean"] for one in means if one["gate"] == "auto"}
    best, default = max(auto, key=lambda threshold: round(auto[threshold], 3)), settings.gate_threshold
    known = f"; the default, {default:g}, has {auto[default]:.3f}" if default in auto else ""
    _say(console, f"With gate auto, the best threshold is {best:g} with {auto[best]:.3f}{known}.")
    for one in means:
        one["above"] = mean(row["repetitive"] for row in rows if row["threshold"] == one["threshold"])
    keys = [Column("threshold", "threshold"), Column("above", "prompts above", "%")]
    cell = lambda one: f"{one['mean']:.3f} ({one['lowest']:.3f})"  # noqa: E731
    print_rows(console, *pivoted(means, keys, "gate", cell, "gate {}"))


def _print_warm(console: Console, rows: Sequence[Row], _: Settings) -> None:
    for pair in dict.fromkeys(row["pair"] for row in rows):
        whole = [row for row in rows if row["pair"] == pair and row["turn"] is None]
        means = {tuple(one.values())[:2]: one["mean"] for one in overall(whole, ("draft_type", "memory"))}
        parts = [
            f"{name} {means[name, COLD]:.2f} cold, {means[name, WARM]:.2f} warm"
            for name in dict.fromkeys(row["draft_type"] for row in whole)
        ]
        same = 100 * mean(row["same_answer"] for row in whole)
        note = "" if pair == SAME else f" ({same:.1f} % of its answers equal the first model's)"
        _say(console, f"{pair.capitalize()}{note}: {'; '.join(parts)}.")
    ordered = sorted(rows, key=lambda row: (row["turn"] is None, row["turn"]))
    named = [row | {"at": f"turn {row['turn']}" if row["turn"] else "all"} for row in ordered]
    named += [
        row | {"at": "measured", "speedup": row["measured_speedup"]} for row in named if row["at"] == "all"
    ]
    print_rows(console, *pivoted(named, WARM_KEYS, "at", lambda row: row["speedup"], form="2"))
