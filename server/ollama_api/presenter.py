"""Format responses of /api/chat and /api/generate, whole or as a stream of JSON lines."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from pydantic_core import from_json, to_json

from reprise.engine.interface.events import TokenLogprob
from reprise.server.errors import ApiError
from reprise.server.http.error_responses import ollama_error
from reprise.server.ollama_api.schemas import GeneratingFields
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
)
from reprise.server.output.presenter import Json, OneChoicePresenter, chat_logprobs

NS_PER_MS = 1_000_000


class LinePresenter(OneChoicePresenter):
    """Presenter for /api/chat, or for /api/generate.

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

    def format_response(self, outputs: Sequence[ChoiceOutput], usage: Json, timings: Json) -> bytes:
        """See Presenter."""
        (output,) = outputs
        said: Json = {"thinking": output.reasoning} if output.reasoning else {}
        if output.tool_calls:
            said["tool_calls"] = [_call(call) for call in output.tool_calls]
        logprobs = _logprobs(output.logprobs)
        return to_json(self._line(output.text, said, **logprobs, **self._end(output.end, usage, timings)))

    def format_silence(self) -> bytes:
        """See Presenter. Clients expect a part of the response in every line, so send one without text."""
        return to_json(self._line("")) + b"\n"

    def format_error(self, fault: ApiError) -> bytes:
        """See Presenter."""
        return to_json(ollama_error(fault.renamed(GeneratingFields.names))) + b"\n"

    def _ending(self, end: EndPart, usage: Json, timings: Json) -> bytes:
        return to_json(self._line("", **self._end(end, usage, timings))) + b"\n"

    def _part(self, part: Part) -> bytes:
        match part:
            case PromptPart():
                return b""
            case TextPart() if part.text or part.logprobs:
                line = self._line(part.text, **_logprobs(part.logprobs))
            case ReasoningPart() if part.text:
                line = self._line("", {"thinking": part.text})
            case ToolCallPart():
                line = self._line("", {"tool_calls": [_call(part)]})
            case CallStartPart():
                self._begun = part
                return b""
            case CallArgumentsPart() if begun := self._begun:
                # Calls are not streamed, so these are all of its arguments.
                whole = ToolCallPart(begun.id, begun.name, part.text, begun.index)
                line = self._line("", {"tool_calls": [_call(whole)]})
            case _:
                return b""
        return to_json(line) + b"\n"

    def _line(self, text: str, said: Json | None = None, **more: object) -> Json:
        """Return a response, or a line of one. said: what the model said beside the text."""
        line: Json = {"model": self.model, "created_at": written(datetime.now(UTC))}
        if self._is_chat:
            line["message"] = {"role": "assistant", "content": text, **(said or {})}
        else:
            line |= {"response": text, **(said or {})}
        return line | {"done": False} | more

    def _end(self, end: EndPart, usage: Json, timings: Json) -> Json:
        """Return the counts of the last line. Durations are in nanoseconds; counts include cached tokens."""
        checked = {} if end.schema_valid is None else {"schema_valid": end.schema_valid}
        return {
            "done": True,
            "done_reason": "length" if end.finish_reason == "length" else "stop",
            "total_duration": time.perf_counter_ns() - self._begun_ns,
            "load_duration": self._loaded_ns - self._begun_ns,
            "prompt_eval_count": usage["prompt_tokens"],
            "prompt_eval_duration": round(timings["prompt_ms"] * NS_PER_MS),
            "eval_count": usage["completion_tokens"],
            "eval_duration": round(timings["predicted_ms"] * NS_PER_MS),
            **checked,
        }


def written(moment: datetime) -> str:
    """Return a time in Ollama's format. moment: in UTC."""
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z"


def _call(call: ToolCallPart) -> Json:
    function = {"index": call.index, "name": call.name, "arguments": from_json(call.arguments)}
    return {"id": call.id, "function": function}


def _logprobs(entries: Sequence[TokenLogprob]) -> Json:
    return {"logprobs": chat_logprobs(entries)} if entries else {}
