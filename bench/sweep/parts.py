"""The parts of a sweep that replay chats: draft types and lengths, gate thresholds, and warm tables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean

import polars as pl

from bench.decode.answering import Answering, Arm
from bench.experiment import Row
from bench.local_engine import LocalEngine
from bench.outputs import Work
from bench.replay.pairs import TokenPair
from bench.replay.policies import Setup
from bench.sweep.replaying import (
    TABLE_ENTRIES,
    AnsweredChat,
    Play,
    measure,
    play,
    player_at,
    settings_of,
    summed,
)
from config.settings import Settings
from drafters.assembly import make_drafters
from drafters.base import Drafter
from drafters.ngram_mod.drafter import NAME, NgramModDrafter
from drafters.ngram_mod.tables import NgramModTables
from drafters.repetition import repetition_score
from drafters.suffix import SuffixDrafter
from engine.request import DraftType

DRAFT_TYPES: tuple[DraftType, ...] = ("auto", "suffix", "ngram-mod", "ngram-simple")
WITHOUT_NGRAMS = ("suffix",)
"""Draft types without an n-gram size."""

LENGTHS = (2, 4, 8, 16, 31)
NGRAM_SIZES = (2, 4, 8, 12, 16, 24)
POINT = ("draft_type", "num_draft_tokens", "ngram_size")
MODES = ("auto", "on")
"""For prompts below the threshold, auto starts with short drafts and learns; on never drafts."""

THRESHOLDS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5)
SAME, OTHER = "same model", "other model"
COLD, WARM, OTHERS = "cold", "warm", "warm from other chats"
"""States of the table: empty; filled with the first model's answers to all chats; or to all other chats."""

WARM_TYPES: tuple[DraftType, ...] = ("ngram-mod", "auto")


def pairs_of(answered: Sequence[AnsweredChat], without: int | None = None) -> list[TokenPair]:
    """Return all pairs of these chats. without: index of a chat to leave out."""
    return [pair for at, one in enumerate(answered) if at != without for pair in one.pairs]


def grid(draft_types: Sequence[DraftType], lengths: Sequence[int], ngram_sizes: Sequence[int]) -> list[Row]:
    """Return all points of the grid, by increasing length and size."""
    return [
        dict(zip(POINT, (draft_type, length, size), strict=True))
        for draft_type in draft_types
        for length in sorted(lengths)
        for size in ((None,) if draft_type in WITHOUT_NGRAMS else sorted(ngram_sizes))
    ]


def default_point(draft_type: DraftType, settings: Settings) -> Row:
    """Return the point that a server uses by default with this draft type."""
    size = settings.ngram_size_min if draft_type == "ngram-simple" else settings.ngram_mod_size
    values = draft_type, settings.num_draft_tokens, None if draft_type in WITHOUT_NGRAMS else size
    return dict(zip(POINT, values, strict=True))


def replays(setup: Setup, points: Sequence[Row], pairs: Sequence[TokenPair], work: Work) -> Iterator[Row]:
    """Yield a row for each point and workload."""
    for point in points:
        yield from summed(play(player_at(setup, point), pairs), ("workload",), **point)
        work.advance()


def overall(rows: Sequence[Row], by: Sequence[str] = POINT) -> list[Row]:
    """Return for each point the geometric mean of all workloads' speedups, and the lowest."""
    speedup = pl.col("speedup")
    frame = pl.DataFrame(
        [{name: row[name] for name in (*by, "speedup")} for row in rows], infer_schema_length=None
    )
    means = frame.group_by(by, maintain_order=True)
    return means.agg(mean=speedup.log().mean().exp(), lowest=speedup.min()).to_dicts()


def best_of(rows: Sequence[Row], by: Sequence[str] = POINT) -> Row:
    """Return the point with the highest mean; shorter drafts win ties."""
    return max(
        overall(rows, by), key=lambda one: (round(one["mean"], 3), -(one.get("num_draft_tokens") or 0))
    )


def text_of(point: Row) -> str:
    """Name a point of the grid."""
    size = f", n-grams of {point['ngram_size']}" if point["ngram_size"] else ""
    return f"{point['draft_type']}, drafts of {point['num_draft_tokens']}{size}"


def measure_best(
    answering: Answering, rows: Sequence[Row], some: Sequence[AnsweredChat], settings: Settings, repeats: int
) -> list[Row]:
    """Measure the server's default and the best point of each draft type on the engine, by workload."""
    types = list(dict.fromkeys(row["draft_type"] for row in rows))
    points = [default_point(settings.draft_type, settings)] if settings.draft_type in types else []
    best = [best_of([row for row in rows if row["draft_type"] == draft_type]) for draft_type in types]
    points += [{name: one[name] for name in POINT} for one in best]
    named = {text_of(point): point for point in points}

    def arm(point: Row) -> Arm:
        def prepare(local: LocalEngine) -> None:
            drafters = make_drafters(settings_of(point, settings), local.engine.tokenizer.fingerprint)
            local.drafters.update(drafters)

        return Arm(point["draft_type"], point["num_draft_tokens"], prepare=prepare)

    arms = {name: arm(point) for name, point in named.items()}
    replayed = {(text_of(row), row["workload"]): row["speedup"] for row in rows}
    measured = measure(answering, some, arms, repeats, f"{len(named)} configurations")
    names = ("workload", "tokens", "speedup", "tokens_per_forward", "acceptance", "parity")
    return [
        point | {name: row[name] for name in names} | {"replayed_speedup": replayed[text, row["workload"]]}
        for text, point in named.items()
        for row in measured
        if (row["turn"], row["arm"]) == (None, text)
    ]


def gate(setup: Setup, thresholds: Sequence[float], pairs: Sequence[TokenPair], work: Work) -> list[Row]:
    """Return a row for each threshold, gate mode and workload, with draft type auto.

    repetitive: the share of prompts at or above the threshold.
    """
    points = [
        {"draft_type": "auto", "threshold": threshold, "gate": mode}
        for threshold in sorted(thresholds)
        for mode in MODES
    ]
    scores = [(pair.workload, repetition_score(pair.prompt)) for pair in pairs if pair.is_measured]

    def repetitive(row: Row) -> float:
        return mean(float(score >= row["threshold"]) for name, score in scores if name == row["workload"])

    return [row | {"repetitive": repetitive(row)} for row in replays(setup, points, pairs, work)]


@dataclass(frozen=True, slots=True)
class Model:
    """A model that uses an n-gram table. pair: SAME or OTHER. answered: its own plain answers."""

    pair: str
    setup: Setup
    answered: Sequence[AnsweredChat]


def warm(first: Model, user: Model, folder: Path, work: Work, measured: Sequence[Row] = ()) -> Iterator[Row]:
    """Yield a row for each workload, turn, table state and draft type; turn None is for all turns together.

    The table is passed between models as a file, as servers do with --ngram-table-file.
    first: the model that fills the table. user: the model that uses it, with the same chats.
    measured: rows of draft type auto on the engine; see measure_warm().
    Raises TableFileError if the two have different vocabularies.
    """
    work.stage(f"replaying cold and warm tables, {user.pair}", len(user.answered))
    files = {COLD: None, WARM: folder / "all.table", OTHERS: folder / "others.table"}
    save(first, folder / "all.table")
    plays: list[Play] = []
    same: dict[tuple[str, int | None], list[bool]] = {}
    for at, (one, by_first) in enumerate(zip(user.answered, first.answered, strict=True)):
        save(first, folder / "others.table", without=at)
        for pair, of_first in zip(one.pairs, by_first.pairs, strict=False):
            for turn in (pair.turn or 0, None):
                same.setdefault((pair.workload, turn), []).append(pair.answer == of_first.answer)
        for draft_type, (memory, file) in product(WARM_TYPES, files.items()):
            of_table = NgramModDrafter(table_in(user.setup, file))
            drafters: list[Drafter] = [of_table] if draft_type == NAME else [SuffixDrafter(), of_table]
            player = player_at(user.setup, {"draft_type": draft_type}, drafters)
            for row, outcome in play(player, one.pairs, is_cold=False):
                about = row | {"draft_type": draft_type, "memory": memory}
                plays += [(about, outcome), (about | {"turn": None}, outcome)]
        work.advance()
    speedups = {(row["workload"], row["turn"], row["arm"]): row["speedup"] for row in measured}
    for row in summed(plays, ("workload", "turn", "draft_type", "memory"), pair=user.pair):
        workload, turn, memory = row["workload"], row["turn"], row["memory"]
        needed = {(name, one, memory) for name, one in same if name == workload and turn in (None, one)}
        is_known = row["draft_type"] == "auto" and needed <= speedups.keys()
        speedup = speedups[workload, turn, memory] if is_known else None
        yield row | {"same_answer": mean(same[workload, turn]), "measured_speedup": speedup}


def table_in(setup: Setup, file: Path | None) -> NgramModTables:
    """Return the n-gram tables in a file, for a model; empty ones without a file. Raises TableFileError."""
    size = setup.settings.ngram_mod_size
    tables = NgramModTables(setup.vocabulary, size, TABLE_ENTRIES, file=file or Path())
    if file is not None:
        tables.load()
    return tables


def save(model: Model, file: Path, without: int | None = None) -> None:
    """Write the table that a server has after a model's answers to these chats. Raises TableFileError."""
    tables = table_in(model.setup, None)
    tables.file = file
    player = player_at(model.setup, {"draft_type": NAME}, [NgramModDrafter(tables)])
    for pair in pairs_of(model.answered, without):
        player.play(pair)
    tables.save()


def measure_warm(
    answering: Answering, first: Model, user: Model, some: Sequence[AnsweredChat], folder: Path, repeats: int
) -> list[Row]:
    """Run chats on the engine of the user's model: plainly, cold and warm, alternating.

    Raises TableFileError if the two models have different vocabularies.
    """
    save(first, folder / "all.table")
    answering.local.drafters[NAME] = NgramModDrafter(table_in(user.setup, folder / "all.table"))

    def load(local: LocalEngine) -> None:
        local.engine.table_reset()
        local.engine.table_load()

    arms = {COLD: Arm("auto"), WARM: Arm("auto", prepare=load)}
    return measure(answering, some, arms, repeats, f"cold and warm tables, {user.pair},")
