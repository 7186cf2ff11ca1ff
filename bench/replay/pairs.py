"""Pairs of a prompt and its answer, in files with one JSON object per line.

    {"prompt": "Rename ...", "output": "def ...", "workload": "edits", "chat": "7", "turn": 1, "id": "..."}

`prompt` and `output` are text or token ids. The other fields are optional, and unknown fields are ignored.
The pairs of one chat are in the order of its turns.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, StrictInt, StrictStr, TypeAdapter, ValidationError

from bench.errors import ArgumentsError, reason

Encode = Callable[[str], Sequence[int]]
"""Returns the token ids of a text, without the special tokens that begin or end a prompt."""

TokenId = Annotated[StrictInt, Field(ge=0, lt=2**31)]
Text = StrictStr | tuple[TokenId, ...]
"""Text, or its token ids."""


def _as_text(value: object) -> object:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return "" if value is None else str(value) if is_number else value


Name = Annotated[StrictStr, BeforeValidator(_as_text)]
"""Text; a number is written as text."""


class PairsError(ArgumentsError):
    """A file of pairs cannot be read or written; the message gives the file, the line and the reason."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt and its answer, each as text or as token ids.

    workload: the kind of request, if known. chat: the chat that it belongs to; empty for a single request.
    turn: its number in the chat, from 1. id: names the request to people.
    """

    prompt: Annotated[Text, Field(min_length=1)]
    output: Text
    workload: Name = ""
    chat: Name = ""
    turn: StrictInt | None = None
    id: Name = ""


@dataclass(frozen=True, slots=True)
class TokenPair:
    """A pair as token ids, with at least one token in prompt and answer. The other fields are as in Pair.

    is_measured: False for a pair that only fills the drafters' tables.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    workload: str = ""
    chat: str = ""
    turn: int | None = None
    id: str = ""
    is_measured: bool = True


def read_pairs(path: Path) -> list[Pair]:
    """Return all pairs of a file, in order. Empty lines are skipped; answers may be empty, prompts may not.

    Raises PairsError.
    """
    adapter = TypeAdapter(Pair)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as fault:
        raise PairsError(f"cannot read {path}: {fault.strerror}") from fault
    pairs = []
    for number, line in enumerate(lines, 1):
        try:
            pairs += [adapter.validate_json(line)] if line.strip() else []
        except ValidationError as fault:
            raise PairsError(f"{path} line {number}: {reason(fault)}") from None
    return pairs


def write_pairs(path: Path, pairs: Iterable[Pair]) -> int:
    """Write pairs to a file, replacing its content; return their number. Raises PairsError."""
    lines = [json.dumps(as_json(pair)) + "\n" for pair in pairs]
    try:
        path.write_text("".join(lines), encoding="utf-8")
    except OSError as fault:
        raise PairsError(f"cannot write {path}: {fault.strerror}") from fault
    return len(lines)


def as_json(pair: Pair) -> dict[str, object]:
    """Return the JSON object of a pair, without unknown fields."""
    fields = asdict(pair)
    return {name: fields[name] for name in fields if name == "output" or fields[name] not in ("", None)}


def tokenized(pairs: Iterable[Pair], encode: Encode) -> list[TokenPair]:
    """Return the pairs as token ids, without those whose prompt or answer is empty."""
    found = []
    for pair in pairs:
        prompt, answer = (
            tuple(encode(text)) if isinstance(text, str) else text for text in (pair.prompt, pair.output)
        )
        if prompt and answer:
            found.append(TokenPair(prompt, answer, pair.workload, pair.chat, pair.turn, pair.id))
    return found
