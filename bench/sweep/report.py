"""What a sweep found, for the terminal: tables, each with a sentence that says what it shows."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.sweep import gate, grid, tables, warm
from bench.sweep.grid import Configuration
from config.settings import Settings

Rows = Sequence[Mapping[str, Any]]


def print_report(console: Console, section: Mapping[str, Any], settings: Settings) -> None:
    """Whatever parts there are. settings: a server's defaults, named beside what is best."""
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
    """A small table for each draft type: n-gram size by draft length."""
    means = grid.overall(rows)
    workloads = len({row["workload"] for row in rows})
    for draft_type in dict.fromkeys(row["draft_type"] for row in rows):
        points = {point: found for point, found in means.items() if point.draft_type == draft_type}
        best = grid.best_of(rows, draft_type)
        said = f"{draft_type}: {best} is best, {means[best][0]:.2f}"
        default = grid.default_configuration(draft_type, settings)
        if default in means:
            said += f"; the default, {default}, has {means[default][0]:.2f}"
        console.print(f"\n{said}.", highlight=False)
        lengths = sorted({point.num_draft_tokens for point in points})
        table = _table("n-gram size", *(f"{length} tokens" for length in lengths))
        for size in sorted({point.ngram_size for point in points}, key=lambda size: size or 0):
            cells = [points.get(Configuration(draft_type, length, size)) for length in lengths]
            table.add_row(str(size or "-"), *(f"{c[0]:.2f} ({c[1]:.2f})" if c else "-" for c in cells))
        console.print(table)
    console.print(
        f"Speed-up by replay, the geometric mean of {workloads} workloads; in brackets the slowest one's.",
        style="dim",
        highlight=False,
    )


def print_measured(console: Console, measured: Rows, replayed: Rows) -> None:
    """The default and the best configurations on the engine, beside the replay."""
    said = {_place(row): row["speedup"] for row in replayed}
    workloads = list(dict.fromkeys(row["workload"] for row in measured))
    table = _table("", *workloads, "equal")
    of_points = dict.fromkeys(_place(row)[:3] for row in measured)
    for point in of_points:
        own = {row["workload"]: row for row in measured if _place(row)[:3] == point}
        cells = [_beside(own[name]["speedup"], said.get((*point, name))) for name in workloads]
        is_equal = all(row["parity"] == "PASS" for row in own.values())
        table.add_row(str(Configuration(*point)), *cells, "yes" if is_equal else "NO")
    console.print("\nOn the engine, first the default: the speed-up measured, and in brackets replayed.")
    console.print(table)
    if any(row["parity"] != "PASS" for row in measured):
        console.print("NO: some answer was not, token by token, what plain decoding said; see bench decode.")


def print_tables(console: Console, rows: Rows, of_ngram_sizes: Rows, settings: Settings) -> None:
    """A table for each size of traffic, and one of the n-gram sizes."""
    for requests in dict.fromkeys(row["requests"] for row in rows):
        own = [row for row in rows if row["requests"] == requests]
        enough = tables.smallest_without_loss(own)
        largest = max(row["entries"] for row in own)
        verdict = (
            f"the smallest table that loses nothing against {largest:,} entries has {enough:,}"
            if enough < largest
            else f"every table smaller than {largest:,} entries loses something"
        )
        told = f"{requests:,} requests, {own[0]['traffic_tokens'] / 1e6:.1f} million tokens: {verdict}"
        console.print(f"\n{told}; the default is {settings.ngram_table_entries:,}.", highlight=False)
        _print_held(console, "entries", own, "entries")
    if of_ngram_sizes:
        best = max(of_ngram_sizes, key=lambda row: round(row["speedup"], 3))
        whole = best["requests"], best["entries"], best["ngram_size"], settings.ngram_mod_size
        console.print(
            "\nThe same {:,} requests with {:,} entries: n-grams of {} are best; the default is {}.".format(
                *whole
            ),
            highlight=False,
        )
        _print_held(console, "n-gram size", of_ngram_sizes, "ngram_size")
    console.print(
        "ngram-mod alone, by replay. Known: tokens of answers that the table held before they were said.",
        style="dim",
        highlight=False,
    )


def _print_held(console: Console, first: str, rows: Rows, name: str) -> None:
    table = _table(
        first, "occupied", "overwritten by others", "drafts of others", "known", "known of what came before",
        "accepted", "tokens/forward", "speed-up",
    )  # fmt: skip
    shares = "occupancy", "overwritten", "foreign_drafts", "known", "known_again", "acceptance"
    for row in rows:
        figures = f"{row['tokens_per_forward']:.2f}", f"{row['speedup']:.2f}"
        table.add_row(f"{row[name]:,}", *(_share(row[share]) for share in shares), *figures)
    console.print(table)


def print_gate(console: Console, rows: Rows, settings: Settings) -> None:
    """Speed-up by threshold, for both ways to treat prompts below it."""
    by_mode = {mode: gate.means(rows, mode) for mode in gate.MODES}
    auto = by_mode["auto"]
    best = max(auto, key=lambda threshold: round(auto[threshold][0], 3))
    said = f"With the gate on auto a threshold of {best:g} is best, {auto[best][0]:.3f}"
    if settings.gate_threshold in auto:
        said += f"; the default, {settings.gate_threshold:g}, has {auto[settings.gate_threshold][0]:.3f}"
    console.print(f"\n{said}.", highlight=False)
    table = _table("threshold", "prompts above", "auto", "slowest", "on", "slowest")
    for threshold, found in auto.items():
        own = [row for row in rows if row["threshold"] == threshold and row["gate"] == "auto"]
        above = sum(row["repetitive"] for row in own) / len(own)
        on = by_mode["on"][threshold]
        table.add_row(f"{threshold:g}", _share(above), *(f"{number:.3f}" for number in (*found, *on)))
    console.print(table)
    console.print(
        "Draft type auto, by replay: mean over workloads, and the slowest workload. Below the threshold auto "
        "begins with doubt and learns; on never drafts.",
        style="dim",
    )


def print_warm(console: Console, rows: Rows) -> None:
    """Cold against warm, turn by turn."""
    turns = sorted({row["turn"] for row in rows if row["turn"]})
    table = _table(
        "model", "workload", "drafts", "table", *(f"turn {turn}" for turn in turns), "all", "measured"
    )
    groups: dict[tuple[str, str, str, str], dict[int | None, Mapping[str, Any]]] = {}
    for row in rows:
        key = row["pair"], row["workload"], row["draft_type"], row["memory"]
        groups.setdefault(key, {})[row["turn"]] = row
    for names, own in groups.items():
        whole = own[None]
        cells = [f"{own[turn]['speedup']:.2f}" if turn in own else "" for turn in turns]
        table.add_row(*names, *cells, f"{whole['speedup']:.2f}", _number(whole["measured_speedup"]))
    console.print()
    for pair in dict.fromkeys(row["pair"] for row in rows):
        console.print(f"{_warm_sentence(rows, pair)}", highlight=False)
    console.print(table)
    console.print(
        "Speed-up by replay, and of all turns as measured on the engine. Cold: a table that is empty before "
        "each chat. Warm: one that holds the first model's answers to all chats, or to all others.",
        style="dim",
    )


def _warm_sentence(rows: Rows, pair: str) -> str:
    own = [row for row in rows if row["pair"] == pair and row["turn"] is None]
    said = []
    for draft_type in dict.fromkeys(row["draft_type"] for row in own):
        speedups = [
            grid.mean_of([row for row in own if row["draft_type"] == draft_type and row["memory"] == memory])
            for memory in (warm.COLD, warm.WARM)
        ]
        said.append(f"{draft_type} goes from {speedups[0]:.2f} cold to {speedups[1]:.2f} warm")
    same = sum(row["same_answer"] for row in own) / len(own)
    told = "" if pair == warm.SAME else f" ({_share(same)} of its answers are the first model's)"
    return f"{pair.capitalize()}{told}: {', '.join(said)}."


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
