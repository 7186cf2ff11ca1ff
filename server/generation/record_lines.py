"""Make the lines that --record writes: one for each finished choice.

    {"id": "req-12-0", "model": "...", "messages": [...], "tools": [...], "temperature": 0.2,
     "prompt": "<|im_start|>user...", "output": "def f...", "draft_type": "auto", "finish_reason": "stop",
     "prompt_tokens": 812, "cached_tokens": 640, "completion_tokens": 97, ...}

`reprise bench` can read a line as a request (`--prompts`) or as a pair of prompt and output (`--pairs`).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any

from reprise.engine.interface.events import Finished
from reprise.engine.interface.request import GenerationRequest
from reprise.server.conversation.model import Message
from reprise.server.generation.service import Service
from reprise.server.generation.submit import Submission
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.generation_fields import GenerationFields

RECORDED_FIELDS = {
    "response_format",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "reasoning_effort",
    "chat_template_kwargs",
}
"""Fields that are recorded if they are set, beside the messages: the ones that determine the output."""


def record_choices(service: Service, body: GenerationFields, submission: Submission) -> None:
    """Record the finished choices of a request, if the server records requests."""
    if service.recorder is not None and submission.finished:
        ends = [(submission.engine_requests[at], end) for at, end in sorted(submission.finished.items())]
        service.recorder.record(partial(_lines, service, body, ends))


def _lines(
    service: Service, body: GenerationFields, ends: Sequence[tuple[GenerationRequest, Finished]]
) -> Iterator[bytes]:
    # No warnings: pydantic serializes a union with a validator of its own twice, and misses the model then.
    fields = body.model_dump(
        mode="json", by_alias=True, exclude_unset=True, include=RECORDED_FIELDS, warnings=False
    )
    if isinstance(body, ChatRequest):
        fields["messages"] = [_message(message) for message in body.messages]
    if isinstance(body, ChatRequest) and body.shown_tools:
        fields["tools"] = [tool.for_template() for tool in body.shown_tools]
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    for engine_request, end in ends:
        line = {"time": now, "id": engine_request.id, "model": service.engine.info.name} | fields
        line |= _text(service, engine_request, end)
        line["draft_type"] = engine_request.draft.type or service.settings.draft_type
        if engine_request.window_settings:
            line["streaming"] = asdict(engine_request.window_settings)
        yield json.dumps(line | _counts(end)).encode() + b"\n"


def _message(message: Message) -> dict[str, Any]:
    """Return a message as a request to OpenAI's API has it, where arguments are text."""
    shown = message.for_template()
    for call in shown.get("tool_calls", ()):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return shown


def _text(service: Service, engine_request: GenerationRequest, end: Finished) -> dict[str, str]:
    tokenizer = service.engine.tokenizer
    tokens = end.tokens
    if tokens and tokens[-1] in tokenizer.eos_ids:
        tokens = tokens[:-1]
    return {"prompt": tokenizer.decode(engine_request.prompt), "output": tokenizer.decode(tokens)}


def _counts(end: Finished) -> dict[str, Any]:
    usage, drafting = end.usage, end.usage.drafting
    return {
        "finish_reason": end.reason,
        "prompt_tokens": usage.num_prompt_tokens,
        "cached_tokens": usage.num_cached_tokens,
        "completion_tokens": usage.num_completion_tokens,
        "draft_tokens": drafting.num_drafted,
        "accepted_tokens": drafting.num_accepted,
        "forwards": drafting.num_forwards,
    }
