"""Edits of source files; each answer is the whole file."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from bench.workloads.chats import Grow, Turn, Workload, conversation, single_turn
from bench.workloads.files import WHOLE, File, change, constants, set_value

SHORT_STATEMENTS, MEDIUM_STATEMENTS = 6, 11
NUM_TURNS = {"edits_short": 6, "edits_long": 4}
MAX_STATEMENTS = 20_000


def _edit(rng: random.Random, _: Grow) -> Sequence[Turn]:
    file = File(rng).text(MEDIUM_STATEMENTS)
    request, changed = change(file, rng, ["value"])
    return single_turn(f"{request} {WHOLE}\n\n{file}", changed)


def _edit_again(rng: random.Random, _: Grow) -> Sequence[Turn]:
    file = File(rng).text(MEDIUM_STATEMENTS)
    name = constants(file)[0][0]
    (first,), (second,) = (
        single_turn(f"{verb} {name} to {new}.\n\n{file}", set_value(file, name, new))
        for verb, new in zip(("Set", "Change"), rng.sample(range(100, 999), 2), strict=True)
    )
    return [replace(first, is_measured=False), second]


def _edit_again_cold(rng: random.Random, grow: Grow) -> Sequence[Turn]:
    return _edit_again(rng, grow)[1:]


def _code(rng: random.Random, grow: Grow) -> Sequence[Turn]:
    return _edits(_grown(File(rng), grow), rng, 1)


def _edits_short(rng: random.Random, _: Grow) -> Sequence[Turn]:
    return _edits(File(rng).text(SHORT_STATEMENTS), rng, NUM_TURNS["edits_short"])


def _edits_long(rng: random.Random, grow: Grow) -> Sequence[Turn]:
    file = File(rng, num_constants=(12, 24), num_statements=(2, 4))
    return _edits(_grown(file, grow), rng, NUM_TURNS["edits_long"])


def _grown(file: File, grow: Grow) -> str:
    return file.text(grow(lambda count: f"Set lantern to 100. {WHOLE}\n\n{file.text(count)}", MAX_STATEMENTS))


def _edits(file: str, rng: random.Random, num_turns: int) -> list[Turn]:
    """Make a chat about one file, in which each turn changes the previous answer."""

    def changes() -> Iterator[tuple[str, str]]:
        changed = file
        for _ in range(num_turns):
            request, changed = change(changed, rng)
            yield f"{request} {WHOLE}", changed

    return conversation(changes(), f"\n\n{file}")


WORKLOADS = (
    Workload("edits", "a file of about 20 lines with one value changed, answered in full", _edit),
    Workload("edits_again", "the same, after an earlier edit of the same file", _edit_again),
    Workload("edits_again_cold", "the chats of edits_again without the earlier edit", _edit_again_cold),
    Workload("code", "one change in a file of the given length, answered in full", _code, (600, 800)),
    Workload("edits_short", "a snippet of about ten lines, edited in six turns, each answered in full",
             _edits_short),
    Workload("edits_long", "a file of hundreds of lines, edited in four turns, each answered in full",
             _edits_long, (1500,)),
)  # fmt: skip
