"""Print the results of a sweep: the tables of each part, and a sentence about its best setting."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from rich.console import Console

from bench.experiment import Row
from bench.sweep.parts import best_of, default_point, overall, text_of
from bench.sweep.tables import smallest_without_loss
from bench.tables import Column, pivoted, print_rows
from config.settings import Settings

Table = tuple[str, Sequence[Mapping[str, Any]], Sequence[Column]]
"""A sentence above the table, its rows, and its columns."""

HELD = [
    Column("requests", "requests", "0"), Column("entries", "entries", "0"),
    Column("ngram_size", "n-gram\nsize"), Column("occupancy", "occupied", "%"),
    Column("overwritten", "over-\nwritten", "%"), Column("foreign_drafts", "foreign\ndrafts", "%"),
    Column("known", "known", "%"), Column("known_again", "known in\nrepeated texts", "%"),
    Column("acceptance", "accepted", "%"), Column("tokens_per_forward", "tokens/\nforward", "2"),
    Column("speedup", "speedup", "2"),
]  # fmt: skip
WARM_KEYS = [
    Column("pair", "model"), Column("workload", "workload"), Column("draft_type", "drafts"),
    Column("memory", "table"),
]  # fmt: skip


def print_report(console: Console, section: Mapping[str, Any], settings: Settings) -> None:
    """Print all parts in the section. settings: the server's defaults, to compare the best with."""
    for name, tables_of in PARTS.items():
        if rows := section.get(name):
            for sentence, table, columns in tables_of(rows, settings):
                console.print(f"\n{sentence}", highlight=False, markup=False)
                print_rows(console, table, columns)
            console.print(NOTES.get(name, ""), highlight=False, markup=False)


def _best(rows: Sequence[Row], default: Row, name: Callable[[Row], str]) -> str:
    """Say which point has the highest mean, and what the default has, if it was replayed."""
    means, best = overall(rows, tuple(default)), best_of(rows, tuple(default))
    known = "".join(
        f"; the default, {name(one)}, has {one['mean']:.3f}"
        for one in means
        if default.items() <= one.items()
    )
    return f"The best is {name(best)} with {best['mean']:.3f}{known}."


def _mean_and_lowest(row: Mapping[str, Any]) -> str:
    return f"{row['mean']:.3f} ({row['lowest']:.2f})"


def _grid(rows: Sequence[Row], settings: Settings) -> Iterator[Table]:
    for draft_type in dict.fromkeys(row["draft_type"] for row in rows):
        own = [row for row in rows if row["draft_type"] == draft_type]
        means = sorted(overall(own), key=lambda one: (one["num_draft_tokens"], one["ngram_size"] or 0))
        size = [Column("ngram_size", "n-gram size")]
        yield (
            _best(own, default_point(draft_type, settings), text_of),
            *pivoted(means, size, "num_draft_tokens", _mean_and_lowest, "{} tokens"),
        )


def _measured(rows: Sequence[Row], _: Settings) -> Iterator[Table]:
    wrong = {text_of(row) for row in rows if row["parity"] != "PASS"}
    named = [row | {"point": (point := text_of(row)), "parity": point not in wrong} for row in rows]
    keys = [Column("point", ""), Column("parity", "equal", lambda is_equal: "yes" if is_equal else "NO")]
    advice = "NO: an answer differs from the plain one; run reprise bench decode for details."
    cell = lambda row: f"{row['speedup']:.2f} ({row['replayed_speedup']:.2f})"  # noqa: E731
    sentence = "Speedup measured on the engine, in parentheses the replayed one:"
    yield advice if wrong else sentence, *pivoted(named, keys, "workload", cell)


def _table_sizes(rows: Sequence[Row], settings: Settings) -> Iterator[Table]:
    for requests in dict.fromkeys(row["requests"] for row in rows):
        own = [row for row in rows if row["requests"] == requests]
        sentence = (
            f"{requests:,} requests, {own[0]['traffic_tokens'] / 1e6:.1f} million tokens: the smallest table "
            f"as good as {max(row['entries'] for row in own):,} entries has {smallest_without_loss(own):,}; "
            f"the default is {settings.ngram_table_entries:,}."
        )
        yield sentence, own, HELD


def _ngram_sizes(rows: Sequence[Row], settings: Settings) -> Iterator[Table]:
    default = {"ngram_size": settings.ngram_mod_size}
    yield _best(rows, default, lambda one: f"n-grams of {one['ngram_size']}"), rows, HELD


def _gate(rows: Sequence[Row], settings: Settings) -> Iterator[Table]:
    auto = [row for row in rows if row["gate"] == "auto"]
    means = overall(rows, ("threshold", "gate"))
    for one in means:
        one["above"] = mean(row["repetitive"] for row in rows if row["threshold"] == one["threshold"])
    keys = [Column("threshold", "threshold"), Column("above", "prompts above", "%")]
    yield (
        _best(auto, {"threshold": settings.gate_threshold}, lambda one: f"threshold {one['threshold']:g}"),
        *pivoted(means, keys, "gate", _mean_and_lowest, "gate {}"),
    )


def _warm(rows: Sequence[Row], _: Settings) -> Iterator[Table]:
    whole = [row for row in rows if row["turn"] is None]
    means = overall(whole, ("pair", "draft_type", "memory"))
    for one in means:
        one["same"] = mean(row["same_answer"] for row in whole if row["pair"] == one["pair"])
    keys = [Column("pair", "model"), Column("same", "same\nanswers", "%"), Column("draft_type", "drafts")]
    yield "Means over all workloads:", *pivoted(means, keys, "memory", lambda row: row["mean"], form="2")
    ordered = sorted(rows, key=lambda row: (row["turn"] is None, row["turn"]))
    named = [row | {"at": f"turn {row['turn']}" if row["turn"] else "all"} for row in ordered]
    named += [row | {"at": "measured", "speedup": row["measured_speedup"]} for row in whole]
    yield "By workload and turn:", *pivoted(named, WARM_KEYS, "at", lambda row: row["speedup"], form="2")


PARTS: dict[str, Callable[[Sequence[Row], Settings], Iterator[Table]]] = {
    "warm": _warm, "table_sizes": _table_sizes, "ngram_sizes": _ngram_sizes, "gate": _gate, "grid": _grid,
    "measured": _measured,
}  # fmt: skip
"""By the name of a part: what makes its tables."""

NOTES = {
    "warm": "Replayed speedup; measured: on the engine, over all turns. Cold: the table is empty before each "
    "chat. Warm: it holds the first model's answers to all chats, or to all other chats.",
    "table_sizes": "ngram-mod alone, replayed. overwritten: writes that replaced another n-gram's token. "
    "foreign drafts: drafted tokens of another n-gram. known: answer tokens that the table predicts.",
    "gate": "Draft type auto, replayed speedup: mean over workloads, and the lowest. Below the threshold, "
    "gate auto starts with short drafts and learns; gate on never drafts.",
    "grid": "Replayed speedup: geometric mean over workloads, and in parentheses the lowest.",
}
