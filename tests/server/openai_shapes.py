"""Validate responses against the openai package's models. Only three fields may be unknown to them.

These are timings, whose shape is defined here, the reasoning_content of messages and deltas, and the
status of a custom_tool_call, which the package knows in stored items only.
"""

import json
from typing import Any, TypeVar

from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from pydantic import BaseModel, ConfigDict

ModelT = TypeVar("ModelT", bound=BaseModel)


class Timings(BaseModel):
    """The documented shape of timings. Every field is required."""

    model_config = ConfigDict(strict=True, extra="forbid")

    cache_n: int
    read_ahead_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int
    forwards: int
    fed: int
    by_source: dict[str, dict[str, int]]
    gate: dict[str, float | str | None]
    translation: dict[str, int | str] | None = None
    streaming: dict[str, float | str | bool | None] | None = None
    stopped: str | None = None


def valid_timings(given: dict[str, Any]) -> Timings:
    timings = Timings.model_validate(given)
    assert all(counts.keys() == {"draft_n", "draft_n_accepted"} for counts in timings.by_source.values())
    assert timings.gate.keys() == {"score", "decision", "reason", "undrafted"}
    return timings


def valid(model: type[ModelT], given: dict[str, Any]) -> ModelT:
    """Return the typed model. Fail for a wrong type, a missing field or an unknown field."""
    if "timings" in given:
        valid_timings(given["timings"])
    parsed = model.model_validate({k: v for k, v in given.items() if k != "timings"}, strict=True)
    _forbid_unknown(parsed, model.__name__)
    return parsed


def valid_chat(given: dict[str, Any]) -> ChatCompletion:
    for choice in given["choices"]:
        assert "logprobs" in choice
        assert "refusal" in choice["message"]
    assert given["system_fingerprint"].startswith("fp_")
    return valid(ChatCompletion, given)


def valid_completion(given: dict[str, Any]) -> Completion:
    assert all("logprobs" in choice for choice in given["choices"])
    return valid(Completion, given)


def valid_model(given: dict[str, Any]) -> Model:
    own = ("context_length", "max_model_len", "meta", "modalities", "sampling_defaults")
    own += ("tools", "tool_format", "reasoning", "thinking_switches", "purpose", "embedding", "vision")
    assert all(name in given for name in own)
    return valid(Model, {name: value for name, value in given.items() if name not in own})


def stream_data(body: str) -> list[str]:
    """Return the data of each event. All other lines must be comments."""
    lines = [line for line in body.split("\n") if line]
    assert all(line.startswith(("data: ", ": ")) for line in lines), lines
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


def valid_chat_chunks(body: str) -> list[ChatCompletionChunk]:
    """Return the chunks of a whole stream, which must end with [DONE]."""
    *chunks, done = stream_data(body)
    assert done == "[DONE]"
    parsed = [json.loads(chunk) for chunk in chunks]
    assert all("logprobs" in choice for chunk in parsed for choice in chunk["choices"])
    return [valid(ChatCompletionChunk, chunk) for chunk in parsed]


def valid_completion_chunks(body: str) -> list[Completion]:
    """Like valid_chat_chunks, for completions.

    OpenAI sends a null finish_reason in all chunks but the last. The SDK's model is for whole responses and
    does not allow null, so it is replaced before validation.
    """
    *chunks, done = stream_data(body)
    assert done == "[DONE]"
    typed = []
    for chunk in map(json.loads, chunks):
        for choice in chunk["choices"]:
            if choice["finish_reason"] is None:
                choice["finish_reason"] = "stop"
                assert choice["text"]
        typed.append(valid(Completion, chunk))
    return typed


def assert_error(body: dict[str, Any], param: str | None = None, code: str | None = None) -> str:
    """Check OpenAI's error object and return its message."""
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert (error["param"], error["code"]) == (param, code)
    return error["message"]


def _forbid_unknown(value: object, where: str) -> None:
    if isinstance(value, BaseModel):
        extra = dict(value.model_extra or {})
        if isinstance(value, ChatCompletionMessage | ChoiceDelta):
            assert isinstance(extra.pop("reasoning_content", ""), str)
        if getattr(value, "type", None) == "custom_tool_call":
            extra.pop("status", None)
        assert not extra, f"{where} has fields that OpenAI does not know: {extra}"
        for name in type(value).model_fields:
            _forbid_unknown(getattr(value, name), f"{where}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _forbid_unknown(item, f"{where}[{index}]")
