"""The parts of a sweep, one after the other, on as few answers of the model as they need."""

import argparse
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from bench import document
from bench.cost_curves import Curve, describe
from bench.errors import ArgumentsError, BenchError
from bench.local_engine import LocalEngine
from bench.sweep import best, gate, grid, tables, warm
from bench.sweep.asking import Advance, ToldChat, tell
from bench.sweep.replaying import Setup
from bench.sweep.traffic import Asked, make_traffic, source_files
from bench.sweep.warm import Side
from bench.workloads import VERSION, Chat, lengths_of, make_chats, read_prompts
from config.settings import BUNDLED_MODEL, Settings
from engine.model.mlx_lm_baseline import load_tokenizer

OTHER_MODEL = BUNDLED_MODEL / "draft"
PARTS = ("grid", "tables", "gate", "warm")
MAX_MEASURED_CHATS = 1
"""Of each workload, on the engine: what it gives is shown beside the replay, not searched by it."""

Row = dict[str, Any]


class Bars:
    """A bar for each stretch of work, with the time that is left of it."""

    def __init__(self, progress: Progress, console: Console) -> None:
        self.progress = progress
        self.console = console

    def start(self, what: str, total: int) -> Advance:
        """Begin a stretch; returns what is to be called after each of its steps."""
        if not self.console.is_terminal:
            self.console.print(f"{what} ...", highlight=False)
        task = self.progress.add_task(what, total=total)
        return lambda: self.progress.advance(task)


def sweep(arguments: argparse.Namespace, bars: Bars) -> document.Document:
    """Do the parts that were asked for; returns the result document. Raises BenchError."""
    parts = set(arguments.parts)
    settings = Settings(
        model=str(arguments.model) if arguments.model else None,
        num_draft_tokens=max(*arguments.num_draft_tokens, Settings().num_draft_tokens),
        prefix_cache_bytes=0,
    )
    own_chats, other_model = _read_chats(arguments), _other_model(arguments, settings)
    section: dict[str, Any] = {"workloads_version": VERSION}
    loading = bars.start("loading the model", 1)
    with LocalEngine(settings) as local:
        loading()
        setup = _setup(local, settings, arguments.cost_curve)
        section["cost_curves"] = describe([setup.curve])
        told: list[ToldChat] = []
        if parts & {"grid", "gate", "warm"}:
            chats = own_chats or _make_chats(local, arguments)
            advance = bars.start("plain answers", len(chats))
            told = tell(local, chats, arguments.max_tokens, arguments.seed, advance, arguments.references)
        if "warm" in parts:
            section["warm"] = list(_warm(arguments, local, other_model, setup, told, bars))
        if "grid" in parts:
            section["grid"], section["measured"] = _grid(arguments, local, setup, told, bars)
        if "gate" in parts:
            advance = bars.start("thresholds of the gate", len(arguments.thresholds) * len(gate.MODES))
            section["gate"] = list(gate.sweep(setup, arguments.thresholds, warm.pairs_of(told), advance))
        if "tables" in parts:
            section["table_sizes"], section["ngram_sizes"] = _tables(arguments, local, setup, bars)
        return document.new_document(
            document.command_line(arguments), local.engine.info, local.engine.costs, sweep=section
        )


def _other_model(arguments: argparse.Namespace, settings: Settings) -> Path | None:
    """The second model of the warm part. Raises ArgumentsError if it cannot use the first one's table."""
    other: Path | None = arguments.other_model
    if other is None and arguments.model is None and (OTHER_MODEL / "config.json").is_file():
        other = OTHER_MODEL
    if other is None or "warm" not in arguments.parts:
        return None
    first = Path(settings.model_source)
    if load_tokenizer(first).fingerprint != load_tokenizer(other).fingerprint:
        raise ArgumentsError(
            f"--other-model: {other.name} has another vocabulary than {first.name}, and a table "
            "holds tokens; name a model with the same one, or leave warm out of --parts"
        )
    return other


def _read_chats(arguments: argparse.Namespace) -> list[Chat] | None:
    try:
        return read_prompts(arguments.prompts) if arguments.prompts else None
    except ValueError as fault:
        raise ArgumentsError(str(fault)) from None


def _make_chats(local: LocalEngine, arguments: argparse.Namespace) -> list[Chat]:
    """Of each workload, at the shortest prompts that it has by itself."""
    return [
        chat
        for workload in arguments.workloads
        for chat in make_chats(
            workload, arguments.chats, arguments.seed, local.count_tokens, lengths_of(workload)[0]
        )
    ]


def _setup(local: LocalEngine, settings: Settings, curve: Curve | None) -> Setup:
    """What replays share; the costs are as they are now, whatever is learned later."""
    engine = local.engine
    costs, plain_s = engine.costs, engine.costs.seconds(1, 1)
    measured = Curve(
        f"{engine.info.name} here",
        tuple((width, costs.seconds(1, width) / plain_s) for width in costs.widths),
        source="measured when the model was loaded",
    )
    tokenizer = engine.tokenizer
    defaults = replace(Settings(), model=settings.model)
    return Setup(defaults, curve or measured, tokenizer.fingerprint, tokenizer.line_ends)


def _grid(
    arguments: argparse.Namespace, local: LocalEngine, setup: Setup, told: Sequence[ToldChat], bars: Bars
) -> tuple[list[Row], list[Row]]:
    points = grid.configurations(arguments.draft_types, arguments.num_draft_tokens, arguments.ngram_sizes)
    default = grid.default_configuration(setup.settings.draft_type, setup.settings)
    if default not in points and default.draft_type in arguments.draft_types:
        points.append(default)
    advance = bars.start(f"{len(points)} configurations replayed", len(points))
    rows = list(grid.sweep(setup, points, warm.pairs_of(told), advance))
    if not rows:
        raise BenchError("none of the chats left room for an answer in the model's context")
    if not arguments.repeats:
        return rows, []
    chosen, some = best.choose(rows, setup.settings), _first_of_each(told)
    advance = bars.start(f"{len(chosen)} configurations on the engine", len(some))
    measured = best.measure_points(
        local, chosen, some, setup.settings, arguments.max_tokens, arguments.repeats, arguments.seed, advance
    )
    return rows, list(measured)


def _first_of_each(told: Sequence[ToldChat]) -> list[ToldChat]:
    """The first chats of each workload that were answered at all."""
    found: dict[str, list[ToldChat]] = {}
    for one in told:
        own = found.setdefault(one.chat.workload, [])
        if one.pairs and len(own) < MAX_MEASURED_CHATS:
            own.append(one)
    return [one for own in found.values() for one in own]


def _tables(
    arguments: argparse.Namespace, local: LocalEngine, setup: Setup, bars: Bars
) -> tuple[list[Row], list[Row]]:
    tokenizer = local.engine.tokenizer
    paths = source_files([Path(sysconfig.get_path("purelib"))], arguments.seed)
    if not paths:
        raise BenchError("tables: there are no Python files installed here to make traffic of")
    longest = max(arguments.requests)
    advance = bars.start(f"traffic of {longest:,} requests", longest)
    traffic: list[Asked] = []
    for asked in make_traffic(paths, tokenizer.encode_answer, longest, arguments.seed):
        traffic.append(asked)
        advance()
    entries, ngram_sizes, most = arguments.table_entries, arguments.ngram_sizes, arguments.measured_requests
    rows: list[Row] = []
    for requests in sorted(arguments.requests):
        advance = bars.start(f"{len(entries)} table sizes, {requests:,} requests", len(entries))
        rows += tables.sweep(setup, entries, traffic[:requests], most, advance)
    advance = bars.start(f"{len(ngram_sizes)} n-gram sizes, {longest:,} requests", len(ngram_sizes))
    return rows, list(tables.sweep_ngram_sizes(setup, ngram_sizes, traffic, most, advance))


def _warm(
    arguments: argparse.Namespace,
    local: LocalEngine,
    other_model: Path | None,
    setup: Setup,
    told: Sequence[ToldChat],
    bars: Bars,
) -> Iterator[Row]:
    several = [one for one in told if len(one.pairs) > 1] or [one for one in told if one.pairs]
    first = Side(warm.SAME, setup, several)
    with tempfile.TemporaryDirectory() as folder:
        yield from _warm_side(arguments, local, first, first, Path(folder), bars)
        if other_model is None:
            return
        settings = Settings(model=str(other_model), prefix_cache_bytes=0)
        loading = bars.start("loading the other model", 1)
        with LocalEngine(settings) as other:
            loading()
            its = _setup(other, settings, arguments.cost_curve)
            chats = [one.chat for one in several]
            advance = bars.start("the other model's plain answers", len(chats))
            its_told = tell(other, chats, arguments.max_tokens, arguments.seed, advance)
            side = Side(warm.OTHER, its, its_told)
            yield from _warm_side(arguments, other, first, side, Path(folder), bars)


def _warm_side(
    arguments: argparse.Namespace, local: LocalEngine, first: Side, side: Side, folder: Path, bars: Bars
) -> Iterator[Row]:
    some = _first_of_each(side.told) if arguments.repeats else []
    advance = bars.start(f"cold and warm on the engine, {side.pair}", len(some))
    measured = warm.measure_side(
        local, first, side, some, folder, arguments.max_tokens, arguments.repeats, arguments.seed, advance
    )
    advance = bars.start(f"cold and warm replayed, {side.pair}", len(side.told))
    yield from warm.replays(first, side, folder, measured, advance)
