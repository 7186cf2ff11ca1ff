"""What a request of Anthropic's API means as a chat of OpenAI's."""

import re
from collections.abc import Iterator, Sequence
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
    joined,
)
from server.messages_api.schemas import ConversationFields, InputMessage, MessagesRequest
from server.messages_api.thinking import ThinkingOff
from server.requests.chat import ChatRequest
from server.validation.field_errors import validate

_OUR_NAMES = (
    (re.compile(r"\btools\[(\d+)\]\.function\.parameters"), r"tools[\1].input_schema"),
    (re.compile(r"\btools\[(\d+)\]\.function"), r"tools[\1]"),
    (re.compile(r"\btool_choice\.function"), "tool_choice"),
    (re.compile(r"\bresponse_format\.json_schema\.schema"), "output_config.format.schema"),
    (re.compile(r"\bresponse_format(\.json_schema)?"), "output_config.format"),
    (re.compile(r"\breasoning_effort"), "output_config.effort"),
)
"""What OpenAI's fields are called here, for errors that are found only in the chat."""


def to_chat_request(body: MessagesRequest) -> ChatRequest:
    """The request as a chat. Raises BadRequestError, in Anthropic's words."""
    chat = _conversation(body) | {
        "max_tokens": body.max_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "stream": body.stream,
        "draft": body.draft,
    }
    # OpenAI allows fewer stop strings than Anthropic; they have been checked.
    return _chat(chat).model_copy(update={"stop": tuple(body.stop_sequences)})


def to_prompt_request(body: ConversationFields) -> ChatRequest:
    """A chat with the same prompt. Raises BadRequestError, in Anthropic's words."""
    return _chat(_conversation(body))


def with_request_names(fault: BadRequestError) -> BadRequestError:
    """An error about the chat, as one about what was sent."""
    message, param = fault.message, fault.param
    for openais, ours in _OUR_NAMES:
        message = openais.sub(ours, message)
        param = openais.sub(ours, param) if param else param
    return BadRequestError(message, param=param, code=fault.code, headers=fault.headers)


def _chat(given: dict[str, Any]) -> ChatRequest:
    try:
        return validate(given, ChatRequest)
    except BadRequestError as fault:
        raise with_request_names(fault) from fault


def _conversation(body: ConversationFields) -> dict[str, Any]:
    """The fields that make the prompt."""
    messages = list(_messages(body.messages))
    if system := joined(body.system):
        messages.insert(0, {"role": "system", "content": system})
    chat: dict[str, Any] = {"model": body.model, "messages": messages}
    if body.tools:
        chat["tools"] = [tool.as_function() for tool in body.tools]
    if body.tool_choice is not None and body.tools:
        chat["tool_choice"] = body.tool_choice.as_openai()
        if getattr(body.tool_choice, "disable_parallel_tool_use", False):
            chat["parallel_tool_calls"] = False
    if body.thinking is not None:
        chat["chat_template_kwargs"] = {"enable_thinking": not isinstance(body.thinking, ThinkingOff)}
    if body.output_config is not None and (effort := body.output_config.effort):
        chat["reasoning_effort"] = effort
    if (wanted := body.wanted_format) is not None:
        schema = {"name": "output", "strict": True, "schema": wanted.json_schema}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    return chat


def _messages(given: Sequence[InputMessage]) -> Iterator[dict[str, Any]]:
    """The turns; those of one role that follow each other are one, as Anthropic has it."""
    for role, turns in groupby(given, key=lambda message: message.role):
        blocks = [block for turn in turns for block in turn.content]
        match role:
            case "system":
                yield {"role": "system", "content": joined(_texts(blocks))}
            case "user":
                yield from _user_messages(blocks)
            case "assistant":
                yield _assistant_message(blocks)


def _user_messages(blocks: Sequence[ContentBlock]) -> Iterator[dict[str, Any]]:
    """Results of calls are messages of their own, in the order in which they came."""
    for is_result, run in groupby(blocks, key=lambda block: isinstance(block, ToolResultBlock)):
        if not is_result:
            yield {"role": "user", "content": joined(_texts(list(run)))}
            continue
        for block in run:
            if isinstance(block, ToolResultBlock):
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": block.text}


def _assistant_message(blocks: Sequence[ContentBlock]) -> dict[str, Any]:
    """One message; its text is put together as it was when it was an answer."""
    message: dict[str, Any] = {"role": "assistant", "content": "".join(b.text for b in _texts(blocks))}
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    if any(thoughts):
        message["reasoning_content"] = "".join(thoughts)
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
