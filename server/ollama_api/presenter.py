"""Format responses of /api/chat and /api/generate, whole or as a stream of JSON lines."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic_core import from_json, to_json

from reprise.engine.interface.events import TokenLogprob
from reprise.server.errors import ApiError
from reprise.server.http.error_responses import ollama_error
from reprise.server.ollama_api.schemas import GeneratingFields
from reprise.server.output.openai_objects import Timings, UsageBlock, chat_logprobs
from reprise.server.output.parts import (
    CallArgumentsPart,
    CallStartPart,
    ChoiceOutput,
    EndPart,
    Part,
    PromptPart,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    merge_adjacent,
)
from reprise.server.output.presenter import Events

NS_PER_MS = 1_000_000


class LinePresenter:
    """Presenter for /api/chat, or for /api/generate. A request has one choice.

    model: the model's name in the request. is_chat: whether the endpoint is /api/chat.
    The durations in its responses count from the presenter's creation.
    """

    def __init__(self, model: str, *, is_chat: bool) -> None:
        self.model = model
        self._is_chat = is_chat
        self._begun: CallStartPart | None = None
        self._begun_ns = self._loaded_ns = time.perf_counter_ns()

    def note_loaded(self) -> None:
        """Note that the model is loaded."""
        self._loaded_ns = time.perf_counter_ns()

    def format_done(self, reason: Literal["load", "unload"]) -> bytes:
        """Return the response to a request that only loads or unloads a model. reason: its done_reason."""
        return to_json(self._line("", done=True, done_reason=reason))

    def format_response(self, outputs: Sequence[ChoiceOutput], usage: UsageBlock, timings: Timings) -> bytes:
        """See Presenter."""
        (output,) = outputs
        said: dict[str, Any] = {"thinking": output.reasoning} if output.reasoning else {}
        if output.tool_calls:
            said["tool_calls"] = [_call(call) for call in output.tool_calls]
        end = EndPart(output.finish_reason, output.stop, output.schema_valid)
        logprobs = _logprobs(output.logprobs)
        return to_json(self._line(output.text, said, **logprobs, **self._end(end, usage, timings)))

    def format_opening(self, _usage: UsageBlock) -> bytes:
        """See Presenter."""
        return b""

    def format_parts(self, events: Events) -> bytes:
        """See Presenter."""
        return self._parts(events) or self.format_silence()

    def format_silence(self) -> bytes:
        """See Presenter. Clients expect a part of the response in every line, so send one without text."""
        return to_json(self._line("")) + b"\n"

    def format_end(self, events: Events, usage: UsageBlock, timings: Timings) -> bytes:
        """See Presenter."""
        end = next(part for _, part in events if isinstance(part, EndPart))
        return self._parts(events) + to_json(self._line("", **self._end(end, usage, timings))) + b"\n"

    def format_error(self, fault: ApiError) -> bytes:
        """See Presenter."""
        return to_json(ollama_error(fault.renamed(GeneratingFields.names))) + b"\n"

    def _parts(self, events: Events) -> bytes:
        lines = [self._part(part) for part in merge_adjacent(part for _, part in events)]
        return b"".join(to_json(line) + b"\n" for line in lines if line)

    def _part(self, part: Part) -> dict[str, Any] | None:
        """Return the line of a part; None if it has none."""
        match part:
            case PromptPart():
                return None
            case TextPart() if part.text or part.logprobs:
                return self._line(part.text, **_logprobs(part.logprobs))
            case ReasoningPart() if part.text:
                return self._line("", {"thinking": part.text})
            case ToolCallPart():
                return self._line("", {"tool_calls": [_call(part)]})
            case CallStartPart():
                self._begun = part
            case CallArgumentsPart() if begun := self._begun:
                # Calls are not streamed, so these are all of its arguments.
                whole = ToolCallPart(begun.id, begun.name, part.text, begun.index)
                return self._line("", {"tool_calls": [_call(whole)]})
        return None

    def _line(self, text: str, said: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """Return a response, or a line of one. said: what the model said beside the text."""
        line: dict[str, Any] = {"model": self.model, "created_at": written(datetime.now(UTC))}
        if self._is_chat:
            line["message"] = {"role": "assistant", "content": text, **(said or {})}
        else:
            line |= {"response": text, **(said or {})}
        return line | {"done": False} | more

    def _end(self, end: EndPart, usage: UsageBlock, timings: Timings) -> dict[str, Any]:
        """Return the counts of the last line. Durations are in nanoseconds; counts include cached tokens."""
        checked = {} if end.schema_valid is None else {"schema_valid": end.schema_valid}
        return {
            "done": True,
            "done_reason": "length" if end.finish_reason == "length" else "stop",
            "total_duration": time.perf_counter_ns() - self._begun_ns,
            "load_duration": self._loaded_ns - self._begun_ns,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": round(timings.prompt_ms * NS_PER_MS),
            "eval_count": usage.completion_tokens,
            "eval_duration": round(timings.predicted_ms * NS_PER_MS),
            **checked,
        }


def written(moment: datetime) -> str:
    """Return a time in Ollama's format. moment: in UTC."""
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z"


def _call(call: ToolCallPart) -> dict[str, Any]:
    function = {"index": call.index, "name": call.name, "arguments": from_json(call.arguments)}
    return {"id": call.id, "function": function}


def _logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    return {"logprobs": chat_logprobs(entries).content} if entries else {}
