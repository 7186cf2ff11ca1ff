"""Pairs of a prompt and its answer, in files with one JSON object per line.

    {"prompt": "Rename ...", "output": "def ...", "workload": "edits", "chat": "7", "turn": 1, "id": "..."}

`prompt` and `output` are text or token ids. The other fields are optional, and unknown fields are ignored.
The pairs of one chat are in the order of its turns.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, StrictInt, StrictStr, TypeAdapter, ValidationError

from bench.errors import ArgumentsError, reason

Encode = Callable[[str], Sequence[int]]
"""Returns the token ids of a text, without the special tokens that begin or end a prompt."""

# Rules keep a text of tokens as a string of as many characters.
TokenId = Annotated[StrictInt, Field(ge=0, le=sys.maxunicode)]
Text = StrictStr | tuple[TokenId, ...]
"""Text, or its token ids."""

Name = Annotated[str, Field(coerce_numbers_to_str=True)]


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


_ADAPTER = TypeAdapter(Pair)


def read_pairs(path: Path) -> list[Pair]:
    """Return all pairs of a file, in order. Empty lines are skipped; answers may be empty, prompts may not.

    Raises OSError, or ArgumentsError for a line that is no pair.
    """
    pairs = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        try:
            pairs += [_ADAPTER.validate_json(line)] if line.strip() else []
        except ValidationError as fault:
            raise ArgumentsError(f"{path} line {number}: {reason(fault)}") from None
    return pairs


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Write pairs to a file, replacing its content. Raises OSError."""
    lines = [json.dumps(_ADAPTER.dump_python(pair, exclude_defaults=True)) + "\n" for pair in pairs]
    path.write_text("".join(lines), encoding="utf-8")


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
