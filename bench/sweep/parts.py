"""Run the parts of a sweep, sharing the model's answers among them."""

import argparse
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import document
from bench.cost_curves import Curve, describe
from bench.decode.answering import Answering
from bench.errors import ArgumentsError, BenchError
from bench.local_engine import LocalEngine
from bench.outputs import Work
from bench.sweep import best, gate, grid, tables, warm
from bench.sweep.answering import AnsweredChat, answer_plainly
from bench.sweep.replaying import Setup
from bench.sweep.traffic import TrafficRequest, make_traffic, source_files
from bench.sweep.warm import TableUser
from bench.workloads import VERSION, Chat, lengths_of, make_chats, read_prompts
from config.settings import BUNDLED_MODEL, Settings
from engine.model.loading import load_tokenizer

OTHER_MODEL = BUNDLED_MODEL / "draft"
PARTS = ("grid", "tables", "gate", "warm")
MAX_MEASURED_CHATS = 1
"""Chats of each workload that run on the engine; they only check the replay."""

Row = dict[str, Any]


def sweep(arguments: argparse.Namespace, work: Work) -> document.Document:
    """Run the requested parts and return the result document. Raises BenchError."""
    parts = set(arguments.parts)
    settings = Settings(
        model=str(arguments.model) if arguments.model else None,
        num_draft_tokens=max(*arguments.num_draft_tokens, Settings().num_draft_tokens),
        prefix_cache_bytes=0,
    )
    other_model = _other_model(arguments, settings)
    own_chats = read_prompts(arguments.prompts) if arguments.prompts else None
    section: dict[str, Any] = {"workloads_version": VERSION}
    loading = work.stage("loading the model", 1)
    with LocalEngine(settings) as local:
        loading()
        setup = _setup(local, settings, arguments.cost_curve)
        answering = Answering(local, arguments.max_tokens, arguments.seed)
        section["cost_curves"] = describe([setup.curve])
        answered: list[AnsweredChat] = []
        if parts & {"grid", "gate", "warm"}:
            chats = own_chats or _make_chats(local, arguments)
            advance = work.stage("plain answers", len(chats))
            answered = answer_plainly(answering, chats, advance, arguments.references)
        if "warm" in parts:
            section["warm"] = list(_warm(arguments, answering, other_model, setup, answered, work))
        if "grid" in parts:
            section["grid"], section["measured"] = _grid(arguments, answering, setup, answered, work)
        if "gate" in parts:
            advance = work.stage("gate thresholds", len(arguments.thresholds) * len(gate.MODES))
            section["gate"] = list(gate.sweep(setup, arguments.thresholds, warm.pairs_of(answered), advance))
        if "tables" in parts:
            section["table_sizes"], section["ngram_sizes"] = _tables(arguments, local, setup, work)
        return document.new_document(arguments, local.engine.info, local.engine.costs, sweep=section)


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


def _make_chats(local: LocalEngine, arguments: argparse.Namespace) -> list[Chat]:
    """Make the chats of all workloads, at the shortest default prompt length of each."""
    return [
        chat
        for workload in arguments.workloads
        for chat in make_chats(
            workload, arguments.chats, arguments.seed, local.count_tokens, lengths_of(workload)[0]
        )
    ]


def _setup(local: LocalEngine, settings: Settings, curve: Curve | None) -> Setup:
    """Return what the replays share; it keeps the step costs of now, which the engine goes on learning."""
    engine = local.engine
    costs, plain_s = engine.costs, engine.costs.seconds(1, 1)
    measured = Curve(
        f"{engine.info.name} on this machine",
        tuple((width, costs.seconds(1, width) / plain_s) for width in costs.widths),
        source="measured when the model was loaded",
    )
    tokenizer = engine.tokenizer
    defaults = replace(Settings(), model=settings.model)
    return Setup(defaults, curve or measured, tokenizer.fingerprint, tokenizer.line_ends)


def _grid(
    arguments: argparse.Namespace,
    answering: Answering,
    setup: Setup,
    answered: Sequence[AnsweredChat],
    work: Work,
) -> tuple[list[Row], list[Row]]:
    points = grid.configurations(arguments.draft_types, arguments.num_draft_tokens, arguments.ngram_sizes)
    default = grid.default_configuration(setup.settings.draft_type, setup.settings)
    if default not in points and default.draft_type in arguments.draft_types:
        points.append(default)
    advance = work.stage(f"replaying {len(points)} configurations", len(points))
    rows = list(grid.sweep(setup, points, warm.pairs_of(answered), advance))
    if not rows:
        raise BenchError("every chat is too long for this model's context")
    if not arguments.repeats:
        return rows, []
    chosen, some = best.choose(rows, setup.settings), _first_of_each(answered)
    advance = work.stage(f"measuring {len(chosen)} configurations on the engine", len(some))
    measured = best.measure_points(answering, chosen, some, setup.settings, arguments.repeats, advance)
    return rows, list(measured)


def _first_of_each(answered: Sequence[AnsweredChat]) -> list[AnsweredChat]:
    """Return the first chats of each workload with at least one answer."""
    found: dict[str, list[AnsweredChat]] = {}
    for one in answered:
        of_workload = found.setdefault(one.chat.workload, [])
        if one.pairs and len(of_workload) < MAX_MEASURED_CHATS:
            of_workload.append(one)
    return [one for of_workload in found.values() for one in of_workload]


def _tables(
    arguments: argparse.Namespace, local: LocalEngine, setup: Setup, work: Work
) -> tuple[list[Row], list[Row]]:
    tokenizer = local.engine.tokenizer
    paths = source_files([Path(sysconfig.get_path("purelib"))], arguments.seed)
    if not paths:
        raise BenchError("tables: no Python files are installed here to make traffic from")
    longest = max(arguments.requests)
    advance = work.stage(f"making traffic of {longest:,} requests", longest)
    traffic: list[TrafficRequest] = []
    for request in make_traffic(paths, tokenizer.encode_answer, longest, arguments.seed):
        traffic.append(request)
        advance()
    entries, ngram_sizes = arguments.table_entries, arguments.ngram_sizes
    max_measured = arguments.measured_requests
    rows: list[Row] = []
    for requests in sorted(arguments.requests):
        advance = work.stage(f"{len(entries)} table sizes, {requests:,} requests", len(entries))
        rows += tables.sweep(setup, entries, traffic[:requests], max_measured, advance)
    advance = work.stage(f"{len(ngram_sizes)} n-gram sizes, {longest:,} requests", len(ngram_sizes))
    return rows, list(tables.sweep_ngram_sizes(setup, ngram_sizes, traffic, max_measured, advance))


def _warm(
    arguments: argparse.Namespace,
    answering: Answering,
    other_model: Path | None,
    setup: Setup,
    answered: Sequence[AnsweredChat],
    work: Work,
) -> Iterator[Row]:
    several = [one for one in answered if len(one.pairs) > 1] or [one for one in answered if one.pairs]
    first = TableUser(warm.SAME, setup, several)
    with tempfile.TemporaryDirectory() as folder:
        yield from _warm_rows(arguments, answering, first, first, Path(folder), work)
        if other_model is None:
            return
        settings = Settings(model=str(other_model), prefix_cache_bytes=0)
        loading = work.stage("loading the other model", 1)
        with LocalEngine(settings) as other:
            loading()
            other_setup = _setup(other, settings, arguments.cost_curve)
            chats = [one.chat for one in several]
            advance = work.stage("plain answers of the other model", len(chats))
            others = Answering(other, arguments.max_tokens, arguments.seed)
            other_answered = answer_plainly(others, chats, advance)
            user = TableUser(warm.OTHER, other_setup, other_answered)
            yield from _warm_rows(arguments, others, first, user, Path(folder), work)


def _warm_rows(
    arguments: argparse.Namespace,
    answering: Answering,
    first: TableUser,
    user: TableUser,
    folder: Path,
    work: Work,
) -> Iterator[Row]:
    some = _first_of_each(user.answered) if arguments.repeats else []
    advance = work.stage(f"measuring cold and warm tables on the engine, {user.pair}", len(some))
    measured = warm.measure_user(answering, first, user, some, folder, arguments.repeats, advance)
    advance = work.stage(f"replaying cold and warm tables, {user.pair}", len(user.answered))
    yield from warm.replays(first, user, folder, measured, advance)
