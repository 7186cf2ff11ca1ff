"""Convert a Messages request to a chat request, and map the chat's errors back to the request's fields."""

import re
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import groupby
from typing import Any

from pydantic_core import to_json

from server.errors import BadRequestError
from server.messages_api.blocks import (
    ContentBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    join_texts,
)
from server.messages_api.schemas import ConversationFields, InputMessage, MessagesRequest
from server.requests.chat import ChatRequest
from server.requests.streaming_decoding import StreamingDecodingFields
from server.validation.field_errors import validate

_FIELD_NAMES = (
    (re.compile(r"\btools\[(\d+)\]\.function\.parameters"), r"tools[\1].input_schema"),
    (re.compile(r"\btools\[(\d+)\]\.function"), r"tools[\1]"),
    (re.compile(r"\btool_choice\.function"), "tool_choice"),
    (re.compile(r"\bresponse_format\.json_schema\.schema"), "output_config.format.schema"),
    (re.compile(r"\bresponse_format(\.json_schema)?"), "output_config.format"),
    (re.compile(r"\breasoning_effort"), "output_config.effort"),
)
"""(field of the chat request, field of the Messages request), for errors found in the chat request."""


BILLING_LINE = "x-anthropic-billing-header:"
"""The beginning of a line that Claude Code puts at the head of the system prompt."""
_SAMPLING = ("temperature", "top_p", "top_k")


def to_chat_request(body: MessagesRequest, *, drops_billing: bool = True) -> ChatRequest:
    """Return the chat request. Raises BadRequestError that names the fields of the Messages request.

    drops_billing: see kept_system().
    """
    chat = _prompt_fields(body, drops_billing) | {
        "max_tokens": body.max_tokens,
        **{name: getattr(body, name) for name in _SAMPLING if name in body.model_fields_set},
        "stream": body.stream,
        "draft": body.draft,
        **{name: getattr(body, name) for name in StreamingDecodingFields.model_fields},
    }
    # Added unvalidated: OpenAI allows fewer stop strings than Anthropic, and they are validated already.
    return _chat(chat).model_copy(update={"stop": tuple(body.stop_sequences)})


def to_prompt_request(body: ConversationFields, *, drops_billing: bool = True) -> ChatRequest:
    """Return a chat request with the same prompt. Raises BadRequestError as to_chat_request() does."""
    return _chat(_prompt_fields(body, drops_billing))


def with_request_names(fault: BadRequestError) -> BadRequestError:
    """Return an error about the chat request as one about the Messages request."""
    param = fault.param and with_request_name(fault.param)
    error = copy(fault)
    error.param, error.message = param, with_request_name(fault.message)
    return error


def with_request_name(text: str) -> str:
    """Return a path in the chat request, or a text with some, with the names of the Messages request."""
    for pattern, name in _FIELD_NAMES:
        text = pattern.sub(name, text)
    return text


def _chat(given: dict[str, Any]) -> ChatRequest:
    try:
        return validate(given, ChatRequest)
    except BadRequestError as fault:
        raise with_request_names(fault) from fault


def kept_system(blocks: Sequence[TextBlock]) -> list[TextBlock]:
    """Return the system prompt without the line at its head that Claude Code changes with every request.

    It would make every prompt differ from its beginning on, so that nothing of it were cached.
    """
    if not blocks or not blocks[0].text.startswith(BILLING_LINE):
        return list(blocks)
    _, _, rest = blocks[0].text.partition("\n")
    first = [blocks[0].model_copy(update={"text": rest.lstrip("\n")})] if rest.strip() else []
    return [*first, *blocks[1:]]


def _prompt_fields(body: ConversationFields, drops_billing: bool) -> dict[str, Any]:
    """Return the fields that determine the prompt."""
    messages = list(_messages(body.messages))
    if system := join_texts(kept_system(body.system) if drops_billing else body.system):
        messages.insert(0, {"role": "system", "content": system})
    chat: dict[str, Any] = {"model": body.model, "messages": messages}
    if body.tools:
        chat["tools"] = [tool.as_function() for tool in body.tools]
    if body.tool_choice is not None and body.tools:
        chat["tool_choice"] = body.tool_choice.as_openai()
        if getattr(body.tool_choice, "disable_parallel_tool_use", False):
            chat["parallel_tool_calls"] = False
    chat["chat_template_kwargs"] = {"enable_thinking": body.thinking is not None and body.thinking.is_on}
    if body.thinking is not None and body.thinking.is_on:
        chat["thinking_budget_tokens"] = body.thinking.budget_tokens
    if body.output_config is not None and (effort := body.output_config.effort):
        chat["reasoning_effort"] = effort
    if (output_format := body.requested_format) is not None:
        schema = {"name": "output", "strict": True, "schema": output_format.json_schema}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    return chat


def _messages(given: Sequence[InputMessage]) -> Iterator[dict[str, Any]]:
    """Yield the chat messages. Consecutive messages of the same role are merged, as Anthropic does."""
    for role, run in groupby(given, key=lambda message: message.role):
        blocks = [block for message in run for block in message.content]
        match role:
            case "system":
                yield {"role": "system", "content": join_texts(_texts(blocks))}
            case "user":
                yield from _user_messages(blocks)
            case "assistant":
                yield _assistant_message(blocks)


def _user_messages(blocks: Sequence[ContentBlock]) -> Iterator[dict[str, Any]]:
    """Yield a user message for each run of text, and a tool message for each tool result, in order."""
    for is_result, run in groupby(blocks, key=lambda block: isinstance(block, ToolResultBlock)):
        if not is_result:
            yield {"role": "user", "content": join_texts(_texts(list(run)))}
            continue
        for block in run:
            if isinstance(block, ToolResultBlock):
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": block.text}


def _assistant_message(blocks: Sequence[ContentBlock]) -> dict[str, Any]:
    """Return one message. Its text blocks are joined without line breaks, as they were generated."""
    message: dict[str, Any] = {"role": "assistant", "content": "".join(b.text for b in _texts(blocks))}
    reasoning = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    if any(reasoning):
        message["reasoning_content"] = "".join(reasoning)
    calls = [block for block in blocks if isinstance(block, ToolUseBlock)]
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": to_json(call.input).decode()},
            }
            for call in calls
        ]
        message["content"] = message["content"] or None
    return message


def _texts(blocks: Sequence[ContentBlock]) -> list[TextBlock]:
    return [block for block in blocks if isinstance(block, TextBlock)]
