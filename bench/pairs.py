"""Pairs of a prompt and its answer, in files with one JSON object per line.

    {"prompt": "Rename ...", "output": "def ...", "workload": "edits", "chat": "7", "turn": 1, "id": "..."}

`prompt` and `output` are text or token ids. The other fields are optional, and unknown fields are ignored.
The pairs of one chat are in the order of its turns.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import ArgumentsError

Encode = Callable[[str], Sequence[int]]
"""Returns the token ids of a text, without the special tokens that begin or end a prompt."""

Text = str | tuple[int, ...]
"""Text, or its token ids."""

LARGEST_ID = 2**31 - 1
_MAX_SHOWN_CHARS = 40


class PairsError(ArgumentsError):
    """A file of pairs cannot be read or written; the message gives the file, the line and the reason."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt and its answer, each as text or as token ids.

    workload: the kind of request, if known. chat: the chat that it belongs to; empty for a single request.
    turn: its number in the chat, from 1. id: names the request to people.
    """

    prompt: Text
    output: Text
    workload: str = ""
    chat: str = ""
    turn: int | None = None
    id: str = ""


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
    try:
        with path.open("rb") as file:
            return [
                _pair(line, f"{path} line {number}") for number, line in enumerate(file, 1) if line.strip()
            ]
    except OSError as fault:
        raise PairsError(f"cannot read {path}: {fault.strerror}") from fault


def write_pairs(path: Path, pairs: Iterable[Pair]) -> int:
    """Write pairs to a file, replacing its content; return their number.

    Raises PairsError.
    """
    count = 0
    try:
        with path.open("w", encoding="utf-8") as file:
            for pair in pairs:
                file.write(json.dumps(as_json(pair)) + "\n")
                count += 1
    except OSError as fault:
        raise PairsError(f"cannot write {path}: {fault.strerror}") from fault
    return count


def as_json(pair: Pair) -> dict[str, Any]:
    """Return the JSON object of a pair, without unknown fields."""
    rest = {"workload": pair.workload, "chat": pair.chat, "turn": pair.turn, "id": pair.id}
    return {"prompt": pair.prompt, "output": pair.output} | {
        k: v for k, v in rest.items() if v not in ("", None)
    }


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


def _pair(line: bytes, where: str) -> Pair:
    try:
        value = json.loads(line)
    except RecursionError:
        raise PairsError(f"{where} is not JSON: nested too deep") from None
    except UnicodeDecodeError:
        raise PairsError(f"{where} is not UTF-8") from None
    except ValueError as fault:
        raise PairsError(f"{where} is not JSON: {fault}") from None
    if not isinstance(value, dict):
        raise PairsError(f"{where} is not an object with prompt and output: {_shorten(value)}")
    prompt, output = (_text(value, key, where) for key in ("prompt", "output"))
    if not prompt:
        raise PairsError(f"{where}: prompt is empty")
    turn = value.get("turn")
    if turn is not None and (isinstance(turn, bool) or not isinstance(turn, int)):
        raise PairsError(f"{where}: turn must be a whole number, not {_shorten(turn)}")
    return Pair(
        prompt, output, _name(value, "workload", where), _name(value, "chat", where), turn,
        _name(value, "id", where),
    )  # fmt: skip


def _text(pair: dict[str, Any], key: str, where: str) -> Text:
    if key not in pair:
        raise PairsError(f"{where}: {key} is missing")
    value = pair[key]
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise PairsError(f"{where}: {key} contains half of a surrogate pair") from None
        return value
    if isinstance(value, list):
        for at, token in enumerate(value):
            if type(token) is not int or not 0 <= token <= LARGEST_ID:
                raise PairsError(f"{where}: {key}[{at}] is not a token id: {_shorten(token)}")
        return tuple(value)
    raise PairsError(f"{where}: {key} must be text or a list of token ids, not {_shorten(value)}")


def _name(pair: dict[str, Any], key: str, where: str) -> str:
    """Return a field that is text or a number, as text."""
    value = pair.get(key)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise PairsError(f"{where}: {key} must be text, not {_shorten(value)}")
    return str(value)


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."
