"""Points, the settings that a sweep tries: replay answers and traffic at each; measure some on the engine.

A point is plain data: the fields of SETTINGS that differ from a server's, draft_type always among them, and
fields that only describe it. ngram_size is n of ngram-mod.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, product

import numpy as np

from reprise.bench.decode.answering import PLAIN, Answering, Arm, Case, check
from reprise.bench.decode.rows import rows_of
from reprise.bench.experiment import Row, grouped
from reprise.bench.outputs import Work
from reprise.bench.replay.file_edits import AGAIN
from reprise.bench.replay.pairs import TokenPair
from reprise.bench.replay.policies import ServerPlayer, Setup, figures, play_all, summed
from reprise.bench.statistics import ratio
from reprise.bench.workloads import Chat
from reprise.config.settings import Settings
from reprise.drafters.assembly import make_drafters
from reprise.drafters.ngram_mod.drafter import NgramModDrafter
from reprise.drafters.ngram_mod.table import NgramModTables
from reprise.engine.interface.request import DraftType

DRAFT_TYPES: tuple[DraftType, ...] = ("auto", "suffix", "ngram-mod", "ngram-simple")
SETTINGS = {
    "draft_type": "draft_type", "num_draft_tokens": "num_draft_tokens", "ngram_size": "ngram_mod_size",
    "gate": "gate", "threshold": "gate_threshold",
}  # fmt: skip
"""Settings by the fields of points that choose them."""
POINT = ("draft_type", "num_draft_tokens", "ngram_size")
"""The fields of a point of the grid; ngram_size is None for suffix and ngram-simple, which have none."""
MEASURED = 24
"""About so many requests of traffic are replayed at each point; the others only fill the table."""


def grid(draft_types: Sequence[str], lengths: Sequence[int], ngram_sizes: Sequence[int]) -> list[Row]:
    """Return all points of the grid, by increasing length and size."""
    return [
        {"draft_type": draft_type, "num_draft_tokens": length, "ngram_size": size}
        for draft_type, length in product(draft_types, sorted(lengths))
        for size in ((None,) if draft_type in ("suffix", "ngram-simple") else sorted(ngram_sizes))
    ]


def default_point(settings: Settings, fields: Sequence[str] = POINT) -> Row:
    """Return the point of a server's settings: their values of these fields."""
    return {name: getattr(settings, SETTINGS[name]) for name in fields}


def settings_of(point: Row, base: Settings) -> Settings:
    """Return the settings of a server at a point. base: the settings that the point does not change."""
    chosen = {setting: point[name] for name, setting in SETTINGS.items() if point.get(name) is not None}
    return replace(base, **chosen)


def answer_plainly(local: Answering, chats: Sequence[Chat], stage: str) -> list[TokenPair]:
    """Return the model's plain answer to each turn that fits into the context."""
    pairs, advance = [], local.work.stage(stage, len(chats))
    for number, chat in enumerate(chats):
        turns = tuple(replace(turn, is_measured=True) for turn in chat.turns)
        for row in local.run(Case((replace(chat, turns=turns),)), PLAIN):
            turn, name = chat.turns[row["turn"] - 1], f"{chat.workload} {number}"
            prompt, answer = local.prompt_of(turn), tuple(row["tokens"][0])
            pairs.append(TokenPair(prompt, answer, chat.workload, name, row["turn"], turn.is_measured))
        advance()
    return pairs


def filled(first: Sequence[TokenPair], pairs: Sequence[TokenPair]) -> list[TokenPair]:
    """Return pairs with a copy of `first` before each chat, which only fills the drafters' tables."""
    return [
        pair
        for name, chat in groupby(pairs, lambda pair: pair.chat)
        for pair in (*(replace(one, chat=name, is_measured=False) for one in first), *chat)
    ]


def replay(
    setup: Setup,
    points: Sequence[Row],
    pairs: Sequence[TokenPair],
    work: Work,
    stage: str,
    has_turns: bool = False,
) -> list[Row]:
    """Replay pairs at each point; return a row for each point and workload, in which turn is None.

    has_turns: also return rows for single turns.
    Each point has a server of its own. Its drafters forget earlier chats; its gate keeps what it learned.
    """
    rows, advance = [], work.stage(stage, len(points))
    for point in points:
        plays = play_all(ServerPlayer(setup, settings_of(point, setup.settings)), pairs)
        for fields in (("workload",), ("workload", "turn"))[: 1 + has_turns]:
            rows += [{**point, "turn": None, **row} for row in summed(plays, *fields)]
        advance()
    return rows


def fill(setup: Setup, traffic: Sequence[TokenPair], entries: int, n: int) -> Row:
    """Fill an n-gram table with traffic; return its occupancy and its drafts' figures in the second half.

    entries: number of slots. n: tokens of an n-gram.
    overwritten: share of written tokens that replaced another one. known: share of answer tokens that the
    table predicts, one at a time; known_again: the same for answers whose text occurred before.
    """
    tables = NgramModTables("replay", n, entries)
    settings = replace(setup.settings, draft_type="ngram-mod", ngram_mod_size=n)
    player = ServerPlayer(setup, settings, NgramModDrafter(tables))
    table, outcomes, half = tables.table(""), [], len(traffic) // 2
    measured = range(half, len(traffic), max(1, half // MEASURED))
    known, again = list[bool](), list[bool]()
    for number, request in enumerate(traffic):
        if number not in measured:
            table.learn((*request.prompt, *request.answer))
            continue
        table.learn(request.prompt)
        text = (*request.prompt[-n:], *request.answer)
        slots = table.slots(table.hashes(np.asarray(text, np.int64))).tolist()
        found = [table.token(slot) == token for slot, token in zip(slots, text[n:], strict=True)]
        known += found
        again += found if request.workload == AGAIN else []
        outcomes.append(player.play(request))
    return {
        "requests": len(traffic), "entries": entries, "ngram_size": n, "occupancy": table.occupied / entries,
        "overwritten": ratio(tables.counts.overwrites, tables.counts.inserts),
        "known": ratio(sum(known), len(known)), "known_again": ratio(sum(again), len(again)),
        **figures(outcomes),
    }  # fmt: skip


def overall(rows: Sequence[Row], by: Sequence[str] = POINT) -> list[Row]:
    """Return the geometric mean and the lowest of all workloads' speedups at each point."""
    # Imported here, since it comes with an extra.
    import polars as pl

    speedup = pl.col("speedup")
    means = pl.DataFrame(rows, [*by, "speedup"], infer_schema_length=None).group_by(by, maintain_order=True)
    return means.agg(mean=speedup.log().mean().exp(), lowest=speedup.min()).to_dicts()


def best_of(points: Sequence[Row]) -> Row:
    """Return the point with the highest mean speedup over all workloads; shorter drafts win ties."""
    return max(points, key=lambda one: (round(one["mean"], 3), -one.get("num_draft_tokens", 0)))


def measure(
    local: Answering, chats: Sequence[Chat], rows: Sequence[Row], settings: Settings, repeats: int
) -> list[Row]:
    """Run chats on the engine plainly, at the default and at the best point of each draft type in these rows.

    settings: a server's defaults. Returns a row for each of these points and each workload.
    """

    def arm(point: Row) -> Arm:
        make = partial(make_drafters, settings_of(point, settings), local.engine.tokenizer.fingerprint)
        kind, length = point["draft_type"], point["num_draft_tokens"]
        return Arm(kind, length, prepare=lambda _: local.drafters.update(make()))

    best = (best_of(overall(alike)) for alike in grouped(rows, "draft_type").values())
    points = {str(_point(one)): _point(one) for one in (default_point(settings), *best)}
    arms = {"plain": PLAIN} | {name: arm(point) for name, point in points.items()}
    cases = {str(at): Case((chat,)) for at, chat in enumerate(chats)}
    local.work.stage(f"measuring {len(points)} settings on the engine", len(cases) * len(arms) * repeats)
    runs = local.compare(arms, cases, repeats, None)
    replayed = {(str(_point(row)), row["workload"]): row["speedup"] for row in rows}
    names = ("workload", "tokens", "speedup", "tokens_per_forward", "acceptance", "parity")
    return [
        points[row["arm"]]
        | {name: row[name] for name in names}
        | {"replayed_speedup": replayed[row["arm"], row["workload"]]}
        for row in rows_of(runs, check(local, cases, runs), has_turns=False)
    ]


def _point(row: Row) -> Row:
    return {name: row[name] for name in POINT}
