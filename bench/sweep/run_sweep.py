"""`reprise bench sweep`: try draft types and lengths, n-gram and table sizes, and gate thresholds.

Answer chats plainly once, then replay the answers under hundreds of settings, without a model, with the step
costs measured here. The engine's own drafters, gate and slowdown budget decode them again; the default and
the best settings are also measured on the engine. grid: draft type by draft length by n-gram size. tables:
sizes of ngram-mod's table under long traffic of source files. gate: thresholds of the gate. warm: an n-gram
table filled earlier, by the same model or another with the same vocabulary.
"""

import argparse
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, product
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console

from reprise.bench import document, options, outputs
from reprise.bench.cost_curves import Curve, built_in, find_curve
from reprise.bench.decode.answering import Answering, settings_of
from reprise.bench.errors import BenchError
from reprise.bench.experiment import Row
from reprise.bench.options import Flag
from reprise.bench.replay.file_edits import make_traffic
from reprise.bench.replay.pairs import TokenPair
from reprise.bench.replay.policies import Setup
from reprise.bench.sweep import points
from reprise.bench.sweep.points import answer_plainly, default_point, overall, replay
from reprise.bench.tables import Column, pivoted, print_rows
from reprise.bench.workloads import VERSION, Chat, own_chats
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings
from reprise.drafters.repetition import repetition_score

DEFAULT_WORKLOADS = (
    "records", "json_rag", "quotes", "passage", "code", "edits_short", "edits_long", "agent", "free", "trap",
)  # fmt: skip
THRESHOLDS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5)
TABLE_ENTRIES = 1 << 20
"""Size of the n-gram tables in replays of single chats: more than they fill, and quick to clear."""

TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "grid": ("Replayed speedup by maximum draft length: mean of the workloads (lowest)",
             ("draft_type", "ngram_size", "num_draft_tokens")),
    "measured": ("Speedup on the engine; FAIL: an answer differs from the plain one", ()),
    "gate": ("Replayed speedup by gate: below the threshold, auto drafts less at first, on never",
             ("threshold", "repetitive", "gate")),
    "warm": ("Replayed speedup with an n-gram table that is empty, or has the answers to all chats",
             ("pair", "workload", "draft_type", "memory")),
    "table_sizes": ("ngram-mod alone, replayed, under traffic", ()),
    "ngram_sizes": ("The same by n", ()),
}  # fmt: skip
"""Title of a part's table. With fields, it has means: rows by the first fields, columns by the last."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """The inputs of all parts: the engine, the setup of replays, and the chats with plain answers."""

    local: Answering
    setup: Setup
    chats: Sequence[Chat]
    pairs: Sequence[TokenPair]


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the figures, write the files, and return the exit status."""
    options.check_names("--parts", arguments.parts, tuple(PARTS))
    options.check_drafts(arguments, points.DRAFT_TYPES)
    curve = find_curve(arguments.cost_curve) if arguments.cost_curve else None
    chats = own_chats(arguments.prompts, arguments.workloads) or []
    pairs: list[TokenPair] = []
    longest = max(*arguments.num_draft_tokens, Settings().num_draft_tokens)
    settings = settings_of(arguments, num_draft_tokens=longest)
    with outputs.Work() as work, Answering(arguments, work, settings) as local:
        engine, costs = local.engine, local.step_costs
        assert costs
        steps = tuple((width, costs.seconds(1, width) / costs.seconds(1, 1)) for width in costs.widths)
        curve = curve or Curve(f"{engine.info.name} on this machine", steps, source="measured here")
        setup = Setup(Settings(ngram_table_entries=TABLE_ENTRIES), curve, engine.tokenizer.line_ends)
        if set(arguments.parts) != {"tables"}:
            chats = chats or [*chain(*local.chats(arguments.chats, is_short=True))]
            pairs = answer_plainly(local, chats, "plain answers")
            if not pairs:
                raise BenchError("every chat is too long for this model's context")
        found: dict[str, Any] = {"workloads_version": VERSION, "cost_curves": [asdict(curve)]}
        for part in arguments.parts:
            found |= PARTS[part](Sweep(local, setup, chats, pairs))
        result = document.new_document(arguments, engine.info, costs, sweep=found)
    console = outputs.make_console(140)
    _print(console, found)
    flat = [{"part": part, **row} for part in TABLES for row in found.get(part, ())]
    outputs.finish(console, arguments, result, flat)
    return 0


def _print(console: Console, found: Row) -> None:
    """Print the tables of all parts that were run."""
    for part, (title, by) in TABLES.items():
        rows = [row for row in found.get(part, ()) if row.get("turn") is None]
        names = by[:-1] or [name for row in rows[:1] for name in row if name != "acceptance_by_position"]
        columns = [Column(name, name.replace("_", "\n")) for name in names]
        if rows and by:
            notes = _conclusions(rows, by) if part in ("grid", "gate") else ()
            print_rows(console, *pivoted(overall(rows, by), columns, by[-1], _mean), title, notes)
        elif rows:
            print_rows(console, rows, columns, title)


def _conclusions(rows: Sequence[Row], by: Sequence[str]) -> Iterator[str]:
    """Say which point has the highest mean, and what the server's default has."""
    fields = [name for name in points.SETTINGS if name in by]
    every, default = overall(rows, fields), default_point(Settings(), fields)
    (usual,) = (one for one in every if default.items() <= one.items())
    for name, found in (("best", points.best_of(every)), ("default", usual)):
        about = ", ".join(f"{field.replace('_', ' ')} {found[field]}" for field in fields)
        yield f"the {name}: {about}: {_mean(found)}"


def _mean(row: Mapping[str, Any]) -> str:
    return f"{row['mean']:.3f} ({row['lowest']:.2f})"


def _grid(sweep: Sweep) -> dict[str, list[Row]]:
    """Replay all points of the grid and the default; measure the best of each draft type on the engine."""
    given, settings, local = sweep.local.arguments, sweep.setup.settings, sweep.local
    tried = points.grid(given.draft_types, given.num_draft_tokens, given.ngram_sizes)
    default = default_point(settings)
    tried += [] if default in tried else [default]
    rows = replay(sweep.setup, tried, sweep.pairs, local.work, f"replaying {len(tried)} settings")
    found = {"grid": rows}
    if given.repeats:
        first_of_each = {chat.workload: chat for chat in reversed(sweep.chats)}.values()
        found["measured"] = points.measure(local, [*first_of_each], rows, settings, given.repeats)
    return found


def _gate(sweep: Sweep) -> dict[str, list[Row]]:
    """Replay auto at each threshold. repetitive: the share of prompts at or above it."""
    scores = [repetition_score(pair.prompt) for pair in sweep.pairs]
    tried = [
        {"draft_type": "auto", "gate": gate, "threshold": at, "repetitive": mean(one >= at for one in scores)}
        for at, gate in product(THRESHOLDS, ("auto", "on"))
    ]
    return {"gate": replay(sweep.setup, tried, sweep.pairs, sweep.local.work, "gate thresholds")}


def _warm(sweep: Sweep) -> dict[str, list[Row]]:
    """Replay answers with an n-gram table that is empty, and with one that has this model's answers.

    The answers are this model's and, for the bundled model, those of its draft model, which has the same
    vocabulary. Single questions are left out if there are chats of several turns.
    """
    chats = [chat for chat in sweep.chats if len(chat.turns) > 1] or sweep.chats
    work, workloads = sweep.local.work, {chat.workload for chat in chats}
    first = [pair for pair in sweep.pairs if pair.workload in workloads]
    users = {"same model": first}
    if sweep.local.arguments.model is None:
        settings = Settings(model=str(BUNDLED_MODEL / "draft"), prefix_cache_bytes=0)
        with Answering(sweep.local.arguments, work, settings) as other:
            users["other model"] = answer_plainly(other, chats, "plain answers of the draft model")
    rows = []
    for (name, answers), memory in product(users.items(), ("cold", "warm")):
        about = {"pair": name, "memory": memory}
        tried = [about | {"draft_type": draft_type} for draft_type in ("ngram-mod", "auto")]
        pairs = points.filled(first, answers) if memory == "warm" else answers
        rows += replay(sweep.setup, tried, pairs, work, f"{memory} tables, {name}", has_turns=True)
    return {"warm": rows}


def _tables(sweep: Sweep) -> dict[str, list[Row]]:
    """Send generated traffic through tables of each size, and of the default size with each n."""
    given, default, work = sweep.local.arguments, Settings(), sweep.local.work
    longest, encode = max(given.requests), sweep.local.engine.tokenizer.encode_answer
    work.stage(f"making traffic of {longest:,} requests", 1)
    traffic = [*make_traffic(Path(sysconfig.get_path("purelib")), longest, given.seed, encode)]
    sizes = [
        ("table_sizes", *one, default.ngram_mod_size) for one in product(given.requests, given.table_entries)
    ]
    sizes += [("ngram_sizes", longest, default.ngram_table_entries, n) for n in given.ngram_sizes]
    found: dict[str, list[Row]] = {}
    advance = work.stage("sizes of tables and n-grams", len(sizes))
    for part, requests, entries, n in sizes:
        found.setdefault(part, []).append(points.fill(sweep.setup, traffic[:requests], entries, n))
        advance()
    return found


PARTS: dict[str, Callable[[Sweep], dict[str, list[Row]]]] = {
    "grid": _grid, "tables": _tables, "gate": _gate, "warm": _warm
}  # fmt: skip
"""By name: what runs a part and returns the rows of the document."""

FLAGS = (
    *options.shared(
        model=None, workloads=DEFAULT_WORKLOADS, prompts=None, max_tokens=192,
        draft_types=points.DRAFT_TYPES, num_draft_tokens=(2, 4, 8, 16, 31), seed=1, **options.OUTPUTS,
    ),
    Flag("--parts", options.names, "NAMES", tuple(PARTS), "Parts of the sweep."),
    Flag("--chats", options.count, "N", 3, "Chats of each workload."),
    Flag("--repeats", options.count_or_none, "N", 2, "Runs of each measurement; 0: only replay."),
    Flag("--ngram-sizes", options.levels, "N,M", (2, 4, 8, 12, 16, 24), "N-gram sizes of grid and tables."),
    Flag("--table-entries", options.levels, "N,M", tuple(1 << power for power in range(12, 23)),
         "Table sizes."),
    Flag("--requests", options.levels, "N,M", (100, 1000), "Requests of traffic, of 5,500 tokens or so."),
    Flag("--cost-curve", str, "CURVE", None, "Step costs of the replay: those of a result document, or a "
         f"built-in curve: {', '.join(built_in())}. Default: as measured here."),
)  # fmt: skip
