"""Print the results of a sweep: tables, each with a sentence that sums it up."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.sweep import gate, grid, tables, warm
from bench.sweep.grid import Configuration
from config.settings import Settings

Rows = Sequence[Mapping[str, Any]]


def print_report(console: Console, section: Mapping[str, Any], settings: Settings) -> None:
    """Print all parts in the section. settings: the server's defaults, to compare the best with."""
    if "warm" in section:
        print_warm(console, section["warm"])
    if "table_sizes" in section:
        print_tables(console, section["table_sizes"], section["ngram_sizes"], settings)
    if "gate" in section:
        print_gate(console, section["gate"], settings)
    if "grid" in section:
        print_grid(console, section["grid"], settings)
        if section["measured"]:
            print_measured(console, section["measured"], section["grid"])


def print_grid(console: Console, rows: Rows, settings: Settings) -> None:
    """Print a table for each draft type: n-gram size by draft length."""
    means = grid.overall(rows)
    workloads = len({row["workload"] for row in rows})
    for draft_type in dict.fromkeys(row["draft_type"] for row in rows):
        points = {point: found for point, found in means.items() if point.draft_type == draft_type}
        best = grid.best_of(rows, draft_type)
        sentence = f"{draft_type}: the best is {best} with {means[best][0]:.2f}"
        default = grid.default_configuration(draft_type, settings)
        if default in means:
            sentence += f"; the default, {default}, has {means[default][0]:.2f}"
        console.print(f"\n{sentence}.", highlight=False)
        lengths = sorted({point.num_draft_tokens for point in points})
        table = _table("n-gram size", *(f"{length} tokens" for length in lengths))
        for size in sorted({point.ngram_size for point in points}, key=lambda size: size or 0):
            cells = [points.get(Configuration(draft_type, length, size)) for length in lengths]
            table.add_row(str(size or "-"), *(f"{c[0]:.2f} ({c[1]:.2f})" if c else "-" for c in cells))
        console.print(table)
    console.print(
        f"Replayed speedup: geometric mean over {workloads} workloads, and in parentheses the lowest.",
        style="dim",
        highlight=False,
    )


def print_measured(console: Console, measured: Rows, replayed: Rows) -> None:
    """Print the default and the best configurations as measured on the engine, beside the replay."""
    by_replay = {_place(row): row["speedup"] for row in replayed}
    workloads = list(dict.fromkeys(row["workload"] for row in measured))
    table = _table("", *workloads, "equal")
    of_points = dict.fromkeys(_place(row)[:3] for row in measured)
    for point in of_points:
        by_workload = {row["workload"]: row for row in measured if _place(row)[:3] == point}
        cells = [_beside(by_workload[name]["speedup"], by_replay.get((*point, name))) for name in workloads]
        is_equal = all(row["parity"] == "PASS" for row in by_workload.values())
        table.add_row(str(Configuration(*point)), *cells, "yes" if is_equal else "NO")
    console.print(
        "\nSpeedup measured on the engine, in parentheses the replayed one; the default comes first."
    )
    console.print(table)
    if any(row["parity"] != "PASS" for row in measured):
        console.print("NO: an answer differs from the plain one; run reprise bench decode for details.")


def print_tables(console: Console, rows: Rows, of_ngram_sizes: Rows, settings: Settings) -> None:
    """Print a table for each size of traffic, and one for the n-gram sizes."""
    for requests in dict.fromkeys(row["requests"] for row in rows):
        of_size = [row for row in rows if row["requests"] == requests]
        enough = tables.smallest_without_loss(of_size)
        largest = max(row["entries"] for row in of_size)
        verdict = (
            f"the smallest table as good as {largest:,} entries has {enough:,}"
            if enough < largest
            else f"all tables smaller than {largest:,} entries are worse"
        )
        sentence = (
            f"{requests:,} requests, {of_size[0]['traffic_tokens'] / 1e6:.1f} million tokens: {verdict}"
        )
        console.print(f"\n{sentence}; the default is {settings.ngram_table_entries:,}.", highlight=False)
        _print_held(console, "entries", of_size, "entries")
    if of_ngram_sizes:
        best = max(of_ngram_sizes, key=lambda row: round(row["speedup"], 3))
        console.print(
            f"\n{best['requests']:,} requests, {best['entries']:,} entries: the best n-gram size is "
            f"{best['ngram_size']}; the default is {settings.ngram_mod_size}.",
            highlight=False,
        )
        _print_held(console, "n-gram size", of_ngram_sizes, "ngram_size")
    console.print(
        "ngram-mod alone, replayed. overwritten: writes that replaced another n-gram's token. foreign "
        "drafts: drafted tokens that another n-gram had written. known: answer tokens the table predicts.",
        highlight=False,
    )


def _print_held(console: Console, first: str, rows: Rows, name: str) -> None:
    table = _table(
        first, "occupied", "overwritten", "foreign drafts", "known", "known in\nrepeated texts",
        "accepted", "tokens/forward", "speedup",
    )  # fmt: skip
    shares = "occupancy", "overwritten", "foreign_drafts", "known", "known_again", "acceptance"
    for row in rows:
        figures = f"{row['tokens_per_forward']:.2f}", f"{row['speedup']:.2f}"
        table.add_row(f"{row[name]:,}", *(_share(row[share]) for share in shares), *figures)
    console.print(table)


def print_gate(console: Console, rows: Rows, settings: Settings) -> None:
    """Print the speedup by threshold, for both gate modes."""
    by_mode = {mode: gate.means(rows, mode) for mode in gate.MODES}
    auto = by_mode["auto"]
    best = max(auto, key=lambda threshold: round(auto[threshold][0], 3))
    sentence = f"With gate auto, the best threshold is {best:g} with {auto[best][0]:.3f}"
    if settings.gate_threshold in auto:
        sentence += f"; the default, {settings.gate_threshold:g}, has {auto[settings.gate_threshold][0]:.3f}"
    console.print(f"\n{sentence}.", highlight=False)
    table = _table("threshold", "prompts above", "auto", "lowest", "on", "lowest")
    for threshold, figures in auto.items():
        of_threshold = [row for row in rows if row["threshold"] == threshold and row["gate"] == "auto"]
        above = sum(row["repetitive"] for row in of_threshold) / len(of_threshold)
        on = by_mode["on"][threshold]
        table.add_row(f"{threshold:g}", _share(above), *(f"{number:.3f}" for number in (*figures, *on)))
    console.print(table)
    console.print(
        "Draft type auto, replayed speedup: mean over workloads, and the lowest. Below the threshold, gate "
        "auto starts with short drafts and learns; gate on never drafts.",
        style="dim",
    )


def print_warm(console: Console, rows: Rows) -> None:
    """Print cold against warm tables, turn by turn."""
    turns = sorted({row["turn"] for row in rows if row["turn"]})
    table = _table(
        "model", "workload", "drafts", "table", *(f"turn {turn}" for turn in turns), "all", "measured"
    )
    groups: dict[tuple[str, str, str, str], dict[int | None, Mapping[str, Any]]] = {}
    for row in rows:
        key = row["pair"], row["workload"], row["draft_type"], row["memory"]
        groups.setdefault(key, {})[row["turn"]] = row
    for names, by_turn in groups.items():
        all_turns = by_turn[None]
        cells = [f"{by_turn[turn]['speedup']:.2f}" if turn in by_turn else "" for turn in turns]
        table.add_row(*names, *cells, f"{all_turns['speedup']:.2f}", _number(all_turns["measured_speedup"]))
    console.print()
    for pair in dict.fromkeys(row["pair"] for row in rows):
        console.print(f"{_warm_sentence(rows, pair)}", highlight=False)
    console.print(table)
    console.print(
        "Replayed speedup; measured: on the engine, over all turns. Cold: the table is empty before each "
        "chat. Warm: it holds the first model's answers to all chats, or to all other chats.",
        style="dim",
    )


def _warm_sentence(rows: Rows, pair: str) -> str:
    rows = [row for row in rows if row["pair"] == pair and row["turn"] is None]
    parts = []
    for draft_type in dict.fromkeys(row["draft_type"] for row in rows):
        speedups = [
            grid.mean_of([row for row in rows if row["draft_type"] == draft_type and row["memory"] == memory])
            for memory in (warm.COLD, warm.WARM)
        ]
        parts.append(f"{draft_type} {speedups[0]:.2f} cold, {speedups[1]:.2f} warm")
    same = sum(row["same_answer"] for row in rows) / len(rows)
    note = "" if pair == warm.SAME else f" ({_share(same)} of its answers equal the first model's)"
    return f"{pair.capitalize()}{note}: {'; '.join(parts)}."


def _place(row: Mapping[str, Any]) -> tuple[Any, Any, Any, str]:
    return row["draft_type"], row["num_draft_tokens"], row["ngram_size"], row["workload"]


def _table(first: str, *names: str) -> Table:
    table = Table()
    table.add_column(first)
    for name in names:
        table.add_column(name, justify="right")
    return table


def _beside(measured: float, replayed: float | None) -> str:
    return f"{measured:.2f} ({_number(replayed)})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
