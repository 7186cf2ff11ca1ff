"""Convert a Messages request to a chat request, and map the chat's errors back to the request's fields."""

import re
from copy import copy
from typing import Any

from server.conversation.anthropic import kept_system
from server.conversation.model import Message
from server.errors import BadRequestError
from server.messages_api.schemas import ConversationFields, MessagesRequest
from server.requests.chat import ChatRequest
from server.requests.window_fields import WindowFields
from server.validation.field_errors import validate

_FIELD_NAMES = (
    (re.compile(r"\bresponse_format\.json_schema\.schema"), "output_config.format.schema"),
    (re.compile(r"\bresponse_format(\.json_schema)?"), "output_config.format"),
    (re.compile(r"\breasoning_effort"), "output_config.effort"),
)
"""(field of the chat request, field of the Messages request), for errors found in the chat request."""
_SAMPLING = ("temperature", "top_p", "top_k")


def to_chat_request(body: MessagesRequest, *, drops_billing: bool = True) -> ChatRequest:
    """Return the chat request. Raises BadRequestError that names the fields of the Messages request.

    drops_billing: see kept_system().
    """
    return _chat(
        _prompt_fields(body, drops_billing)
        | {
            "max_tokens": body.max_tokens,
            **{name: getattr(body, name) for name in _SAMPLING if name in body.model_fields_set},
            "stop": list(body.stop_sequences),
            "stream": body.stream,
            "draft": body.draft,
            **{name: getattr(body, name) for name in WindowFields.model_fields},
        }
    )


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


def _prompt_fields(body: ConversationFields, drops_billing: bool) -> dict[str, Any]:
    """Return the fields that determine the prompt."""
    system = kept_system(body.system) if drops_billing else body.system
    shown = Message("system", system, joint="\n", at="system")
    is_thinking = body.thinking is not None and body.thinking.is_on
    chat: dict[str, Any] = {
        "model": body.model,
        "messages": (*((shown,) if shown.text else ()), *body.messages),
        "tools": body.tools,
        "tool_choice": body.tool_choice,
        "parallel_tool_calls": body.tool_choice.is_parallel,
        "continue_final_message": body.messages[-1].can_continue,
        "chat_template_kwargs": {"enable_thinking": is_thinking},
    }
    if is_thinking and body.thinking is not None:
        chat["thinking_budget_tokens"] = body.thinking.budget_tokens
    if body.output_config is not None and (effort := body.output_config.effort):
        chat["reasoning_effort"] = effort
    if (output_format := body.requested_format) is not None:
        schema = {"name": "output", "strict": True, "schema": output_format.json_schema}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    return chat
