"""Validate responses against the models of the ollama package."""

import json
from typing import Any, TypeVar

from ollama import ChatResponse, GenerateResponse

AnswerT = TypeVar("AnswerT", ChatResponse, GenerateResponse)
COUNTS = ("total_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration")


def lines_of(text: str) -> list[dict[str, Any]]:
    """Return the objects of a stream. Clients parse every line, so none may be empty."""
    assert text.endswith("\n")
    return [json.loads(line) for line in text.removesuffix("\n").split("\n")]


def valid_answer(given: dict[str, Any], kind: type[AnswerT]) -> AnswerT:
    """Return a whole response, or the last line of one."""
    answer = kind.model_validate(given)
    assert (answer.done, answer.done_reason) in [(True, "stop"), (True, "length")]
    assert answer.created_at is not None
    assert answer.created_at.endswith("Z")
    assert all(isinstance(getattr(answer, name), int) for name in (*COUNTS, "load_duration"))
    assert all(getattr(answer, name) > 0 for name in COUNTS)
    return answer


def valid_lines(text: str, kind: type[AnswerT]) -> list[AnswerT]:
    """Return the lines of a whole stream."""
    *lines, last = lines_of(text)
    assert not [line for line in lines if line["done"] or "done_reason" in line]
    return [*map(kind.model_validate, lines), valid_answer(last, kind)]


def assert_ollama_error(given: dict[str, Any]) -> str:
    """Return the message of an error."""
    assert given.keys() == {"error"}
    assert isinstance(given["error"], str)
    return given["error"]
