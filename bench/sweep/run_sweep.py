"""`reprise bench sweep`: try draft types and lengths, n-gram and table sizes, and gate thresholds.

Answer chats plainly once, then replay the answers under hundreds of settings with the step costs measured
here; the default and the best settings are also measured on the engine. grid: draft type by draft length by
n-gram size. tables: sizes of ngram-mod's table under long traffic of source files. gate: thresholds of the
gate. warm: an n-gram table filled earlier, by the same model or another with the same vocabulary.
"""

import argparse
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from bench import document, options, outputs
from bench.cost_curves import Curve, CurveError, built_in, describe, find_curve
from bench.decode.answering import Answering, chats_of, settings_of
from bench.errors import ArgumentsError, BenchError
from bench.experiment import Row
from bench.local_engine import LocalEngine
from bench.replay.policies import Setup, measured_curve
from bench.sweep import parts, tables
from bench.sweep.parts import Model, pairs_of
from bench.sweep.replaying import AnsweredChat, answer_plainly
from bench.sweep.report import print_report
from bench.sweep.tables import make_traffic, source_files
from bench.workloads import VERSION, WORKLOADS, read_prompts
from config.setting import SettingsError
from config.settings import BUNDLED_MODEL, SETTINGS, Settings
from drafters.base import TableFileError
from engine.model.loading import load_tokenizer

DEFAULT_WORKLOADS = (
    "records", "json_rag", "quotes", "passage", "code", "edits_short", "edits_long", "agent", "free", "trap",
)  # fmt: skip
PARTS = ("grid", "tables", "gate", "warm")
OTHER_MODEL = BUNDLED_MODEL / "draft"
MAX_MEASURED_CHATS = 1
"""Chats of each workload that run on the engine; they only check the replay."""

_WIDTH = 140


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench sweep` to the parser."""
    options.add(
        parser, model=None, workloads=DEFAULT_WORKLOADS, prompts=None, max_tokens=192,
        draft_types=parts.DRAFT_TYPES, num_draft_tokens=parts.LENGTHS, seed=1, **options.OUTPUTS,
    )  # fmt: skip
    flag, counts = options.Flag, options.levels
    options.declare(
        parser,
        flag("--other-model", options.model_folder, "DIR", None, "A model with the same vocabulary, which "
             "uses the table that the first one filled. Default: for the bundled model its draft model."),
        flag("--parts", options.names, "NAMES", PARTS, "Parts of the sweep."),
        flag("--chats", options.count, "N", 3, "Chats of each workload."),
        flag("--repeats", options.count_or_none, "N", 2, "Runs of each measurement; 0: only replay."),
        flag("--ngram-sizes", counts, "N,M", parts.NGRAM_SIZES, "N-gram sizes of grid and tables."),
        flag("--table-entries", counts, "N,M", tables.ENTRIES, "Table sizes."),
        flag("--requests", counts, "N,M", tables.REQUESTS, "Requests of traffic, of 5,500 tokens or so."),
        flag("--measured-requests", options.count, "N", tables.MEASURED, "Those of them that are replayed."),
        flag("--thresholds", _shares, "X,Y", parts.THRESHOLDS, "Gate thresholds."),
        flag("--cost-curve", _curve, "FILE", None, "Step costs of the replay: a file with a curve, a result "
             f"document, or a built-in curve: {', '.join(built_in())}. Default: as measured here."),
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write the files, and return the exit status."""
    _check(arguments)
    with outputs.Work() as work:
        try:
            record = _sweep(arguments, work)
        except TableFileError as fault:
            raise ArgumentsError(str(fault)) from None
    console = outputs.make_console(_WIDTH)
    print_report(console, record["sweep"], Settings())
    lists = {part: rows for part, rows in record["sweep"].items() if isinstance(rows, list)}
    flat = [{"part": part, **row} for part, rows in lists.items() for row in rows]
    outputs.finish(console, arguments, record, flat)
    return 0


def _sweep(arguments: argparse.Namespace, work: outputs.Work) -> document.Document:
    """Run the requested parts and return the result document. Raises BenchError."""
    wanted, repeats = set(arguments.parts), arguments.repeats
    longest = max(*arguments.num_draft_tokens, Settings().num_draft_tokens)
    settings = settings_of(arguments, num_draft_tokens=longest)
    other_model = _other_model(arguments, settings)
    own = read_prompts(arguments.prompts) if arguments.prompts else None
    found: dict[str, Any] = {"workloads_version": VERSION}
    work.stage("loading the model", 1)
    with LocalEngine(settings) as local:
        work.advance()
        setup = _setup(local, settings, arguments.cost_curve)
        answering = Answering(local, arguments.max_tokens, arguments.seed, work)
        found["cost_curves"] = describe([setup.curve])
        answered: list[AnsweredChat] = []
        if wanted & {"grid", "gate", "warm"}:
            chats = own or [*chain(*chats_of(arguments, local, arguments.chats, is_short=True))]
            work.stage("plain answers", len(chats))
            answered = answer_plainly(answering, chats)
        if "warm" in wanted:
            found["warm"] = _warm(arguments, answering, other_model, setup, answered)
        if "grid" in wanted:
            default = parts.default_point(setup.settings.draft_type, setup.settings)
            points = parts.grid(arguments.draft_types, arguments.num_draft_tokens, arguments.ngram_sizes)
            if default not in points and default["draft_type"] in arguments.draft_types:
                points.append(default)
            work.stage(f"replaying {len(points)} configurations", len(points))
            rows = list(parts.replays(setup, points, pairs_of(answered), work))
            if not rows:
                raise BenchError("every chat is too long for this model's context")
            some = _first_of_each(answered) if repeats else []
            found["grid"] = rows
            found["measured"] = some and parts.measure_best(answering, rows, some, setup.settings, repeats)
        if "gate" in wanted:
            work.stage("gate thresholds", len(arguments.thresholds) * len(parts.MODES))
            found["gate"] = parts.gate(setup, arguments.thresholds, pairs_of(answered), work)
        if "tables" in wanted:
            found["table_sizes"], found["ngram_sizes"] = _tables(arguments, local, setup, work)
        return document.new_document(arguments, local.engine.info, local.engine.costs, sweep=found)


def _other_model(arguments: argparse.Namespace, settings: Settings) -> Path | None:
    """Return the second model of the warm part. Raises ArgumentsError if it has another vocabulary."""
    other: Path | None = arguments.other_model
    if other is None and arguments.model is None and (OTHER_MODEL / "config.json").is_file():
        other = OTHER_MODEL
    if other is None or "warm" not in arguments.parts:
        return None
    first = Path(settings.model_source)
    if load_tokenizer(first).fingerprint != load_tokenizer(other).fingerprint:
        raise ArgumentsError(
            f"--other-model: {other.name} and {first.name} have different vocabularies, and the n-gram table "
            "holds token ids; name a model with the same vocabulary, or leave warm out of --parts"
        )
    return other


def _setup(local: LocalEngine, settings: Settings, curve: Curve | None) -> Setup:
    """Return what the replays share; it keeps the step costs of now, which the engine goes on learning."""
    measured = measured_curve(local.engine.costs, f"{local.engine.info.name} on this machine")
    tokenizer, defaults = local.engine.tokenizer, replace(Settings(), model=settings.model)
    return Setup(defaults, curve or measured, tokenizer.fingerprint, tokenizer.line_ends)


def _first_of_each(answered: Sequence[AnsweredChat]) -> list[AnsweredChat]:
    """Return the first chats of each workload with at least one answer."""
    found: dict[str, list[AnsweredChat]] = {}
    for one in answered:
        if one.pairs:
            found.setdefault(one.chat.workload, []).append(one)
    return [one for of_workload in found.values() for one in of_workload[:MAX_MEASURED_CHATS]]


def _tables(
    arguments: argparse.Namespace, local: LocalEngine, setup: Setup, work: outputs.Work
) -> tuple[list[Row], list[Row]]:
    paths = source_files([Path(sysconfig.get_path("purelib"))], arguments.seed)
    if not paths:
        raise BenchError("tables: no Python files are installed here to make traffic from")
    longest, entries, sizes = max(arguments.requests), arguments.table_entries, arguments.ngram_sizes
    advance = work.stage(f"making traffic of {longest:,} requests", longest)
    traffic = []
    for request in make_traffic(paths, local.engine.tokenizer.encode_answer, longest, arguments.seed):
        traffic.append(request)
        advance()
    defaults, max_measured = setup.settings, arguments.measured_requests
    points = [(size, defaults.ngram_mod_size) for size in sorted(entries)]
    rows: list[Row] = []
    for requests in sorted(arguments.requests):
        work.stage(f"{len(entries)} table sizes, {requests:,} requests", len(entries))
        rows += tables.sweep(setup, points, traffic[:requests], max_measured, work)
    work.stage(f"{len(sizes)} n-gram sizes, {longest:,} requests", len(sizes))
    points = [(defaults.ngram_table_entries, n) for n in sorted(sizes)]
    return rows, list(tables.sweep(setup, points, traffic, max_measured, work))


def _warm(
    arguments: argparse.Namespace,
    answering: Answering,
    other_model: Path | None,
    setup: Setup,
    answered: Sequence[AnsweredChat],
) -> list[Row]:
    several = [one for one in answered if len(one.pairs) > 1] or [one for one in answered if one.pairs]
    first, work = Model(parts.SAME, setup, several), answering.work

    def rows_of(answering: Answering, user: Model, folder: str) -> list[Row]:
        some = _first_of_each(user.answered) if arguments.repeats else []
        own = answering, first, user, some, Path(folder), arguments.repeats
        return list(parts.warm(first, user, Path(folder), work, parts.measure_warm(*own) if some else []))

    with tempfile.TemporaryDirectory() as folder:
        rows = rows_of(answering, first, folder)
        if other_model is None:
            return rows
        settings = Settings(model=str(other_model), prefix_cache_bytes=0)
        work.stage("loading the other model", 1)
        with LocalEngine(settings) as other:
            chats = [one.chat for one in several]
            work.stage("plain answers of the other model", len(chats))
            others = Answering(other, arguments.max_tokens, arguments.seed, work)
            other_setup = _setup(other, settings, arguments.cost_curve)
            user = Model(parts.OTHER, other_setup, answer_plainly(others, chats))
            return rows + rows_of(others, user, folder)


def _check(arguments: argparse.Namespace) -> None:
    """Raise ArgumentsError for unknown names, and for numbers that no server accepts."""
    known = {"parts": PARTS, "workloads": tuple(WORKLOADS), "draft_types": parts.DRAFT_TYPES}
    for name, names in known.items():
        options.check_names(f"--{name.replace('_', '-')}", getattr(arguments, name), names)
    limits = {"ngram_sizes": "ngram_size_max", "table_entries": "ngram_table_entries"}
    for name in ("num_draft_tokens", *limits):
        for number in getattr(arguments, name):
            try:
                SETTINGS[limits.get(name, name)].check(number)
            except SettingsError as fault:
                raise ArgumentsError(f"--{name.replace('_', '-')}: {fault}") from None


def _shares(text: str) -> tuple[float, ...]:
    """Parse shares from 0 to 1, separated by commas."""
    return tuple(dict.fromkeys(options.number(0, 1)(part) for part in text.split(",")))


def _curve(text: str) -> Curve:
    try:
        return find_curve(text)
    except CurveError as fault:
        raise argparse.ArgumentTypeError(f"{fault}; built-in curves: {', '.join(built_in())}") from None
