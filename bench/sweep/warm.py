"""What an n-gram table that was filled before is worth: to the model that filled it, and to another one.

The table goes by file from the model that fills it to the model that uses it, as a server with
--ngram-table-file hands it on. So it reaches only a model of the same vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.local_engine import LocalEngine
from bench.pairs import TokenPair
from bench.policies import Outcome
from bench.sweep.asking import PLAIN, Advance, Measured, ToldChat, Variant, measure
from bench.sweep.replaying import TABLE_ENTRIES, Setup, figures
from drafters.base import Drafter
from drafters.ngram_mod import NAME, NgramModDrafter
from drafters.ngram_mod_tables import NgramModTables
from drafters.suffix import SuffixDrafter
from engine.request import DraftChoice, DraftType

SAME, OTHER = "same model", "other model"
COLD, WARM, OTHERS = "cold", "warm", "warm from other chats"
"""An empty table; one filled by the first model's answers to all chats; by those to all other chats."""

MEMORIES = (COLD, WARM, OTHERS)
MEASURED = (COLD, WARM)
"""On the engine, with draft type auto: what a server does."""

DRAFT_TYPES: tuple[DraftType, ...] = ("ngram-mod", "auto")

Key = tuple[str, int, str, DraftType]
"""Workload, turn, memory, draft type."""

Place = tuple[str, int, str]
"""Workload, turn, memory or PLAINLY."""

PLAINLY = "plainly"


@dataclass(frozen=True, slots=True)
class Side:
    """A model that uses a table. pair: SAME or OTHER. told: what it says itself, plainly."""

    pair: str
    setup: Setup
    told: Sequence[ToldChat]


def memory_in(setup: Setup, file: Path) -> NgramModTables:
    """An empty n-gram memory of a model, which saves to that file and loads from it."""
    return NgramModTables(setup.vocabulary, setup.settings.ngram_mod_size, TABLE_ENTRIES, file=file)


def fill(setup: Setup, pairs: Sequence[TokenPair], file: Path) -> None:
    """Write the table that a server has after these requests. Raises TableFileError."""
    memory = memory_in(setup, file)
    player = setup.player(setup.settings, "ngram-mod", [NgramModDrafter(memory)])
    for pair in pairs:
        player.play(pair)
    memory.save()


def pairs_of(told: Sequence[ToldChat], without: int | None = None) -> list[TokenPair]:
    """All pairs of these chats, but those of one of them."""
    return [pair for at, one in enumerate(told) if at != without for pair in one.pairs]


def replays(
    first: Side, side: Side, folder: Path, measured: Mapping[Place, Measured], advance: Advance
) -> Iterator[dict[str, Any]]:
    """A row for each workload, turn, memory and draft type, and one of all turns together, with turn None.

    first: the model that fills the table. side: the one that uses it, asked the same chats.
    folder: where tables are written. measured: what the engine gave, if it was asked; see measure_side().
    Raises TableFileError if the two have different vocabularies.
    """
    outcomes: dict[Key, Outcome] = {}
    equal: dict[tuple[str, int], list[bool]] = {}
    for at, (one, by_first) in enumerate(zip(side.told, first.told, strict=True)):
        files = {COLD: None, WARM: folder / "all.table", OTHERS: folder / "others.table"}
        if at == 0:
            fill(first.setup, pairs_of(first.told), folder / "all.table")
        fill(first.setup, pairs_of(first.told, without=at), folder / "others.table")
        for pair, its in zip(one.pairs, by_first.pairs, strict=False):
            equal.setdefault((pair.workload, pair.turn or 0), []).append(pair.answer == its.answer)
        for draft_type in DRAFT_TYPES:
            for name, file in files.items():
                _replay_chat(side.setup, one.pairs, (name, draft_type), file, outcomes)
        advance()
    yield from _rows(side.pair, outcomes, equal, measured)


def _replay_chat(
    setup: Setup,
    pairs: Sequence[TokenPair],
    how: tuple[str, DraftType],
    file: Path | None,
    outcomes: dict[Key, Outcome],
) -> None:
    name, draft_type = how
    memory = memory_in(setup, file or Path())
    if file is not None:
        memory.load()
    drafters: list[Drafter] = [NgramModDrafter(memory)]
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
    measured: Mapping[Place, Measured],
) -> Iterator[dict[str, Any]]:
    workloads = dict.fromkeys(workload for workload, _, _, _ in outcomes)
    for workload in workloads:
        turns = sorted({turn for one, turn, _, _ in outcomes if one == workload})
        for turn in (*turns, None):
            for draft_type in DRAFT_TYPES:
                for memory in MEMORIES:
                    own = [turn] if turn is not None else turns
                    keys: list[Key] = [(workload, one, memory, draft_type) for one in own]
                    together = Outcome()
                    for key in keys:
                        together.add(outcomes[key])
                    same = [is_equal for one in own for is_equal in equal[workload, one]]
                    yield {
                        "pair": pair,
                        "workload": workload,
                        "draft_type": draft_type,
                        "memory": memory,
                        "turn": turn,
                        **figures(together),
                        "same_answer": sum(same) / len(same),
                        "measured_speedup": _speedup(keys, measured),
                    }


def _speedup(keys: Sequence[Key], measured: Mapping[Place, Measured]) -> float | None:
    plain, drafted = Measured(), Measured()
    for workload, turn, memory, draft_type in keys:
        if draft_type != "auto" or (workload, turn, memory) not in measured:
            return None
        drafted.add(measured[workload, turn, memory])
        plain.add(measured[workload, turn, PLAINLY])
    return drafted.tokens_per_s / plain.tokens_per_s


def measure_side(
    local: LocalEngine,
    first: Side,
    side: Side,
    chats: Sequence[ToldChat],
    folder: Path,
    max_tokens: int,
    repeats: int,
    seed: int,
    advance: Advance,
) -> dict[Place, Measured]:
    """Some chats on the engine that runs the side's model, plainly, cold and warm, in turns.

    Raises TableFileError if the two have different vocabularies.
    """
    file = folder / "measured.table"
    fill(first.setup, pairs_of(first.told), file)
    memory = memory_in(side.setup, file)
    memory.load()
    local.drafters[NAME] = NgramModDrafter(memory)
    found: dict[Place, Measured] = {}
    for one in chats:
        variants = [Variant(PLAINLY, lambda _: None, PLAIN)]
        variants += [Variant(name, partial(_prepare, name == WARM), DraftChoice("auto")) for name in MEASURED]
        for name, runs in measure(local, one, variants, max_tokens, repeats, seed).items():
            for pair, run in zip(one.pairs, runs, strict=True):
                if pair.is_measured:
                    key = pair.workload, pair.turn or 0, name
                    found.setdefault(key, Measured()).add(run)
        advance()
    return found


def _prepare(is_warm: bool, local: LocalEngine) -> None:
    local.engine.table_reset()
    if is_warm:
        local.engine.table_load()
