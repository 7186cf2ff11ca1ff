"""Print the results of a sweep: tables, each with a sentence that sums it up."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from bench.sweep import gate, grid, tables, warm
from bench.sweep.grid import Configuration
from bench.tables import Column, print_rows
from config.settings import Settings

Rows = Sequence[Mapping[str, Any]]


def print_report(console: Console, section: Mapping[str, Any], settings: Settings) -> None:
    """Print all parts in the section. settings: the server's defaults, to compare the best with."""
    if "warm" in section:
        _print_warm(console, section["warm"])
    if "table_sizes" in section:
        _print_tables(console, section["table_sizes"], section["ngram_sizes"], settings)
    if "gate" in section:
        _print_gate(console, section["gate"], settings)
    if "grid" in section:
        _print_grid(console, section["grid"], settings)
        if section["measured"]:
            _print_measured(console, section["measured"], section["grid"])


def _say(console: Console, sentence: str) -> None:
    console.print(f"\n{sentence}", highlight=False, markup=False)


def _print_grid(console: Console, rows: Rows, settings: Settings) -> None:
    """Print a table for each draft type: n-gram size by draft length."""
    means = grid.overall(rows)
    for draft_type in dict.fromkeys(row["draft_type"] for row in rows):
        points = {point: found for point, found in means.items() if point.draft_type == draft_type}
        best = grid.best_of(rows, draft_type)
        sentence = f"{draft_type}: the best is {best} with {means[best][0]:.2f}"
        default = grid.default_configuration(draft_type, settings)
        if default in means:
            sentence += f"; the default, {default}, has {means[default][0]:.2f}"
        _say(console, f"{sentence}.")
        lengths = sorted({point.num_draft_tokens for point in points})
        table = [
            {"size": str(size or "-")}
            | {
                str(length): f"{mean:.2f} ({lowest:.2f})"
                for length in lengths
                for mean, lowest in [points.get(Configuration(draft_type, length, size)) or (0.0, 0.0)]
                if mean
            }
            for size in sorted({point.ngram_size for point in points}, key=lambda size: size or 0)
        ]
        columns = [Column("size", "n-gram size"), *(Column(str(one), f"{one} tokens") for one in lengths)]
        print_rows(console, table, columns)
    workloads = len({row["workload"] for row in rows})
    _say(
        console,
        f"Replayed speedup: geometric mean over {workloads} workloads, and in parentheses the lowest.",
    )


def _print_measured(console: Console, measured: Rows, replayed: Rows) -> None:
    """Print the default and the best configurations as measured on the engine, beside the replay."""

    def place(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return row["draft_type"], row["num_draft_tokens"], row["ngram_size"]

    by_replay = {(*place(row), row["workload"]): row["speedup"] for row in replayed}
    workloads = list(dict.fromkeys(row["workload"] for row in measured))
    table = []
    for point in dict.fromkeys(map(place, measured)):
        of_point = {row["workload"]: row for row in measured if place(row) == point}
        cells: dict[str, Any] = {
            name: f"{of_point[name]['speedup']:.2f} ({by_replay.get((*point, name)) or 0:.2f})"
            for name in workloads
        }
        is_equal = all(row["parity"] == "PASS" for row in of_point.values())
        table.append({"point": str(Configuration(*point)), "equal": "yes" if is_equal else "NO"} | cells)
    _say(console, "Speedup measured on the engine, in parentheses the replayed one; the default comes first.")
    print_rows(
        console,
        table,
        [Column("point", ""), *(Column(name, name) for name in workloads), Column("equal", "equal")],
    )
    if any(row["parity"] != "PASS" for row in measured):
        _say(console, "NO: an answer differs from the plain one; run reprise bench decode for details.")


HELD = [
    Column("entries", "entries", "0"), Column("ngram_size", "n-gram\nsize"),
    Column("occupancy", "occupied", "%"), Column("overwritten", "over-\nwritten", "%"),
    Column("foreign_drafts", "foreign\ndrafts", "%"), Column("known", "known", "%"),
    Column("known_again", "known in\nrepeated texts", "%"), Column("acceptance", "accepted", "%"),
    Column("tokens_per_forward", "tokens/\nforward", "2"), Column("speedup", "speedup", "2"),
]  # fmt: skip


def _print_tables(console: Console, rows: Rows, of_ngram_sizes: Rows, settings: Settings) -> None:
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
        tokens = f"{requests:,} requests, {of_size[0]['traffic_tokens'] / 1e6:.1f} million tokens"
        _say(console, f"{tokens}: {verdict}; the default is {settings.ngram_table_entries:,}.")
        print_rows(console, of_size, HELD)
    if of_ngram_sizes:
        best = max(of_ngram_sizes, key=lambda row: round(row["speedup"], 3))
        where = f"{best['requests']:,} requests, {best['entries']:,} entries"
        found = f"the best n-gram size is {best['ngram_size']}; the default is {settings.ngram_mod_size}"
        _say(console, f"{where}: {found}.")
        print_rows(console, of_ngram_sizes, HELD)
    _say(
        console,
        "ngram-mod alone, replayed. overwritten: writes that replaced another n-gram's token. foreign "
        "drafts: drafted tokens that another n-gram had written. known: answer tokens the table predicts.",
    )


def _print_gate(console: Console, rows: Rows, settings: Settings) -> None:
    """Print the speedup by threshold, for both gate modes."""
    auto, on = (gate.means(rows, mode) for mode in gate.MODES)
    best = max(auto, key=lambda threshold: round(auto[threshold][0], 3))
    sentence = f"With gate auto, the best threshold is {best:g} with {auto[best][0]:.3f}"
    if settings.gate_threshold in auto:
        sentence += f"; the default, {settings.gate_threshold:g}, has {auto[settings.gate_threshold][0]:.3f}"
    _say(console, f"{sentence}.")
    table = []
    for threshold, (mean, lowest) in auto.items():
        above = [row["repetitive"] for row in rows if (row["threshold"], row["gate"]) == (threshold, "auto")]
        table.append({
            "threshold": f"{threshold:g}", "above": sum(above) / len(above), "auto": mean,
            "auto_lowest": lowest, "on": on[threshold][0], "on_lowest": on[threshold][1],
        })  # fmt: skip
    names = {"auto": "auto", "auto_lowest": "lowest", "on": "on", "on_lowest": "lowest"}
    columns = [Column("threshold", "threshold"), Column("above", "prompts above", "%")]
    print_rows(console, table, [*columns, *(Column(name, heading, "3") for name, heading in names.items())])
    _say(
        console,
        "Draft type auto, replayed speedup: mean over workloads, and the lowest. Below the threshold, gate "
        "auto starts with short drafts and learns; gate on never drafts.",
    )


def _print_warm(console: Console, rows: Rows) -> None:
    """Print cold against warm tables, turn by turn."""
    turns = sorted({row["turn"] for row in rows if row["turn"]})
    keys = {"pair": "model", "workload": "workload", "draft_type": "drafts", "memory": "table"}
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        group = groups.setdefault(tuple(row[key] for key in keys), {key: row[key] for key in keys})
        group[str(row["turn"] or "all")] = row["speedup"]
        if row["turn"] is None:
            group["measured"] = row["measured_speedup"]
    for pair in dict.fromkeys(row["pair"] for row in rows):
        _say(console, _warm_sentence(rows, pair))
    columns = [Column(key, heading) for key, heading in keys.items()]
    columns += [Column(str(turn), f"turn {turn}", "2") for turn in turns]
    columns += [Column("all", "all", "2"), Column("measured", "measured", "2")]
    print_rows(console, list(groups.values()), columns)
    _say(
        console,
        "Replayed speedup; measured: on the engine, over all turns. Cold: the table is empty before each "
        "chat. Warm: it holds the first model's answers to all chats, or to all other chats.",
    )


def _warm_sentence(rows: Rows, pair: str) -> str:
    rows = [row for row in rows if row["pair"] == pair and row["turn"] is None]
    parts = []
    for draft_type in dict.fromkeys(row["draft_type"] for row in rows):
        cold, warmed = (
            grid.mean_of([row for row in rows if (row["draft_type"], row["memory"]) == (draft_type, memory)])
            for memory in (warm.COLD, warm.WARM)
        )
        parts.append(f"{draft_type} {cold:.2f} cold, {warmed:.2f} warm")
    same = sum(row["same_answer"] for row in rows) / len(rows)
    note = "" if pair == warm.SAME else f" ({100 * same:.1f} % of its answers equal the first model's)"
    return f"{pair.capitalize()}{note}: {'; '.join(parts)}."
