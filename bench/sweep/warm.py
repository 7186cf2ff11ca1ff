"""Measure the benefit of an n-gram table filled earlier, for the model that filled it and for another one.

The table is passed between models as a file, as servers do with --ngram-table-file. So it works only for
models with the same vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.decode.answering import Answering
from bench.experiment import Row
from bench.local_engine import LocalEngine
from bench.pairs import TokenPair
from bench.replay.policies import Outcome
from bench.sweep.answering import Advance, AnsweredChat, Variant, measure, speed_of
from bench.sweep.replaying import TABLE_ENTRIES, Setup, figures
from drafters.base import Drafter
from drafters.ngram_mod import NAME, NgramModDrafter
from drafters.ngram_mod_tables import NgramModTables
from drafters.suffix import SuffixDrafter
from engine.request import DraftType

SAME, OTHER = "same model", "other model"
COLD, WARM, OTHERS = "cold", "warm", "warm from other chats"
"""States of the table: empty; filled with the first model's answers to all chats; or to all other chats."""

TABLE_STATES = (COLD, WARM, OTHERS)
MEASURED = (COLD, WARM)
"""Measured on the engine, with draft type auto, as a server uses it."""

DRAFT_TYPES: tuple[DraftType, ...] = ("ngram-mod", "auto")

Key = tuple[str, int, str, DraftType]
"""Workload, turn, table state, draft type."""

PLAINLY = "plainly"


@dataclass(frozen=True, slots=True)
class TableUser:
    """A model that uses a table. pair: SAME or OTHER. answered: its own plain answers."""

    pair: str
    setup: Setup
    answered: Sequence[AnsweredChat]


def tables_in(setup: Setup, file: Path) -> NgramModTables:
    """Return empty n-gram tables for a model, which are saved to this file and loaded from it."""
    return NgramModTables(setup.vocabulary, setup.settings.ngram_mod_size, TABLE_ENTRIES, file=file)


def fill(setup: Setup, pairs: Sequence[TokenPair], file: Path) -> None:
    """Write the table that a server has after these requests. Raises TableFileError."""
    tables = tables_in(setup, file)
    player = setup.player(setup.settings, "ngram-mod", [NgramModDrafter(tables)])
    for pair in pairs:
        player.play(pair)
    tables.save()


def pairs_of(answered: Sequence[AnsweredChat], without: int | None = None) -> list[TokenPair]:
    """Return all pairs of these chats. without: index of a chat to leave out."""
    return [pair for at, one in enumerate(answered) if at != without for pair in one.pairs]


def replays(
    first: TableUser, user: TableUser, folder: Path, measured: Sequence[Row], advance: Advance
) -> Iterator[dict[str, Any]]:
    """Yield a row for each workload, turn, table state and draft type; turn None is for all turns together.

    first: the model that fills the table. user: the model that uses it, with the same chats.
    folder: for table files. measured: results from the engine, if any; see measure_user().
    Raises TableFileError if the two have different vocabularies.
    """
    outcomes: dict[Key, Outcome] = {}
    equal: dict[tuple[str, int], list[bool]] = {}
    for at, (one, by_first) in enumerate(zip(user.answered, first.answered, strict=True)):
        files = {COLD: None, WARM: folder / "all.table", OTHERS: folder / "others.table"}
        if at == 0:
            fill(first.setup, pairs_of(first.answered), folder / "all.table")
        fill(first.setup, pairs_of(first.answered, without=at), folder / "others.table")
        for pair, of_first in zip(one.pairs, by_first.pairs, strict=False):
            equal.setdefault((pair.workload, pair.turn or 0), []).append(pair.answer == of_first.answer)
        for draft_type in DRAFT_TYPES:
            for name, file in files.items():
                _replay_chat(user.setup, one.pairs, (name, draft_type), file, outcomes)
        advance()
    yield from _rows(user.pair, outcomes, equal, measured)


def _replay_chat(
    setup: Setup,
    pairs: Sequence[TokenPair],
    how: tuple[str, DraftType],
    file: Path | None,
    outcomes: dict[Key, Outcome],
) -> None:
    name, draft_type = how
    tables = tables_in(setup, file or Path())
    if file is not None:
        tables.load()
    drafters: list[Drafter] = [NgramModDrafter(tables)]
    if draft_type != NAME:
        drafters.insert(0, SuffixDrafter())
    player = setup.player(setup.settings, draft_type, drafters)
    for pair in pairs:
        outcome = player.play(pair)
        if pair.is_measured:
            key = pair.workload, pair.turn or 0, name, draft_type
            outcomes.setdefault(key, Outcome()).add(outcome)


def _rows(
    pair: str,
    outcomes: Mapping[Key, Outcome],
    equal: Mapping[tuple[str, int], Sequence[bool]],
    measured: Sequence[Row],
) -> Iterator[dict[str, Any]]:
    workloads = dict.fromkeys(workload for workload, _, _, _ in outcomes)
    for workload in workloads:
        turns = sorted({turn for one, turn, _, _ in outcomes if one == workload})
        for turn in (*turns, None):
            for draft_type in DRAFT_TYPES:
                for state in TABLE_STATES:
                    included = [turn] if turn is not None else turns
                    keys: list[Key] = [(workload, one, state, draft_type) for one in included]
                    together = Outcome()
                    for key in keys:
                        together.add(outcomes[key])
                    same = [is_equal for one in included for is_equal in equal[workload, one]]
                    yield {
                        "pair": pair, "workload": workload, "draft_type": draft_type, "memory": state,
                        "turn": turn, **figures(together), "same_answer": sum(same) / len(same),
                        "measured_speedup": _speedup(keys, measured),
                    }  # fmt: skip


def _speedup(keys: Sequence[Key], measured: Sequence[Row]) -> float | None:
    """Return the speedup as measured on the engine; None for what was not measured there."""

    def rows_at(state: str, key: Key) -> list[Row]:
        return [row for row in measured if (row["workload"], row["turn"], row["arm"]) == (*key[:2], state)]

    drafted = [row for key in keys if key[3] == "auto" for row in rows_at(key[2], key)]
    if not drafted or any(key[3] != "auto" or not rows_at(key[2], key) for key in keys):
        return None
    return speed_of(drafted) / speed_of([row for key in keys for row in rows_at(PLAINLY, key)])


def measure_user(
    answering: Answering,
    first: TableUser,
    user: TableUser,
    chats: Sequence[AnsweredChat],
    folder: Path,
    repeats: int,
    advance: Advance,
) -> list[Row]:
    """Run chats on the engine of the user's model: plainly, cold and warm, alternating.

    Raises TableFileError if the two models have different vocabularies.
    """
    file = folder / "measured.table"
    fill(first.setup, pairs_of(first.answered), file)
    tables = tables_in(user.setup, file)
    tables.load()
    answering.local.drafters[NAME] = NgramModDrafter(tables)
    variants = {PLAINLY: Variant(lambda _: None, "none")}
    variants |= {name: Variant(partial(_prepare, name == WARM), "auto") for name in MEASURED}
    return measure(answering, chats, variants, repeats, advance) if repeats else []


def _prepare(is_warm: bool, local: LocalEngine) -> None:
    local.engine.table_reset()
    if is_warm:
        local.engine.table_load()
