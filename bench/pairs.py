"""Pairs: what was asked and what came of it, in files of one JSON object a line.

    {"prompt": "Rename ...", "output": "def ...", "workload": "edits", "chat": "7", "turn": 1, "id": "..."}

`prompt` and `output` are text or token ids; the rest may be missing, and whatever else a line says is left to
others. Pairs of one chat stand in the order in which they were asked.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import BenchError

Encode = Callable[[str], Sequence[int]]
"""Text to token ids, without what only a prompt begins or ends with."""

Text = str | tuple[int, ...]
"""Text, or the token ids of it."""

LARGEST_ID = 2**31 - 1
_SHOWN = 40  # characters of what is wrong


class PairsError(BenchError):
    """A file of pairs cannot be read or written; the message names it, the line, and what is wrong there."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt and the answer to it, both as text or as token ids.

    workload: what kind of request it is, if known. chat: whose turn it is; pairs without one stand alone.
    turn: its number in the chat, from 1 on. id: of the request, for people.
    """

    prompt: Text
    output: Text
    workload: str = ""
    chat: str = ""
    turn: int | None = None
    id: str = ""


@dataclass(frozen=True, slots=True)
class TokenPair:
    """A pair in token ids, at least one in the prompt and one in the answer. The rest as in Pair.

    is_measured: False for one that is there only for what it leaves in memory.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    workload: str = ""
    chat: str = ""
    turn: int | None = None
    id: str = ""
    is_measured: bool = True


def read_pairs(path: Path) -> list[Pair]:
    """All pairs of a file, in its order. Empty lines are passed over; answers may be empty, prompts not.

    Raises PairsError.
    """
    try:
        with path.open("rb") as file:
            return [
                _pair(line, f"{path} line {number}") for number, line in enumerate(file, 1) if line.strip()
            ]
    except OSError as fault:
        raise PairsError(f"{path} cannot be read: {fault.strerror}") from fault


def write_pairs(path: Path, pairs: Iterable[Pair]) -> int:
    """Write a file of pairs, one after the other, in place of what was there; returns how many.

    Raises PairsError.
    """
    count = 0
    try:
        with path.open("w", encoding="utf-8") as file:
            for pair in pairs:
                file.write(json.dumps(as_json(pair)) + "\n")
                count += 1
    except OSError as fault:
        raise PairsError(f"{path} cannot be written: {fault.strerror}") from fault
    return count


def as_json(pair: Pair) -> dict[str, Any]:
    """The object of a pair's line, without what is not known."""
    rest = {"workload": pair.workload, "chat": pair.chat, "turn": pair.turn, "id": pair.id}
    return {"prompt": pair.prompt, "output": pair.output} | {
        k: v for k, v in rest.items() if v not in ("", None)
    }


def tokenised(pairs: Iterable[Pair], encode: Encode) -> list[TokenPair]:
    """The pairs in token ids, without those whose prompt or answer has no token."""
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
        said = json.loads(line)
    except RecursionError:
        raise PairsError(f"{where} is no JSON: nested too deep") from None
    except UnicodeDecodeError:
        raise PairsError(f"{where} is not UTF-8") from None
    except ValueError as fault:
        raise PairsError(f"{where} is no JSON: {fault}") from None
    if not isinstance(said, dict):
        raise PairsError(f"{where} is no object with prompt and output: {_shown(said)}")
    prompt, output = (_text(said, key, where) for key in ("prompt", "output"))
    if not prompt:
        raise PairsError(f"{where}: prompt is empty")
    turn = said.get("turn")
    if turn is not None and (isinstance(turn, bool) or not isinstance(turn, int)):
        raise PairsError(f"{where}: turn must be a whole number, not {_shown(turn)}")
    return Pair(
        prompt,
        output,
        _name(said, "workload", where),
        _name(said, "chat", where),
        turn,
        _name(said, "id", where),
    )


def _text(said: dict[str, Any], key: str, where: str) -> Text:
    if key not in said:
        raise PairsError(f"{where}: {key} is missing")
    value = said[key]
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise PairsError(f"{where}: {key} has half of a surrogate pair, which is no character") from None
        return value
    if isinstance(value, list):
        for at, token in enumerate(value):
            if type(token) is not int or not 0 <= token <= LARGEST_ID:
                raise PairsError(f"{where}: {key}[{at}] is no token id: {_shown(token)}")
        return tuple(value)
    raise PairsError(f"{where}: {key} must be text or a list of token ids, not {_shown(value)}")


def _name(said: dict[str, Any], key: str, where: str) -> str:
    """Text or a number, as text."""
    value = said.get(key)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise PairsError(f"{where}: {key} must be text, not {_shown(value)}")
    return str(value)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
