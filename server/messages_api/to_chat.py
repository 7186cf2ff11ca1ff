"""Convert a Messages request to a chat request."""

from typing import Any

from reprise.server.conversation.anthropic import kept_system
from reprise.server.conversation.model import Message
from reprise.server.messages_api.schemas import ConversationFields, MessagesRequest
from reprise.server.requests.chat import ChatRequest, extended
from reprise.server.requests.window_fields import WindowFields
from reprise.server.validation.field_errors import validate_known
from reprise.server.validation.notes import Notes

_SAMPLING = ("temperature", "top_p", "top_k")


def to_chat_request(body: MessagesRequest, notes: Notes, *, drops_billing: bool = True) -> ChatRequest:
    """Return the chat request. Raises BadRequestError, which has the chat request's names of fields.

    notes: records fields of chats that are left out or understood in another form.
    drops_billing: whether to leave out the billing line of the system prompt; see kept_system().
    """
    given = {
        "max_tokens": body.max_tokens,
        **{name: getattr(body, name) for name in _SAMPLING if name in body.model_fields_set},
        "stop": list(body.stop_sequences),
        "stream": body.stream,
        "draft": body.draft,
        **{name: getattr(body, name) for name in WindowFields.model_fields},
    }
    prompt, more = _prompt_fields(body, drops_billing), extended(body)
    if isinstance(own := more["chat_template_kwargs"], dict):
        more["chat_template_kwargs"] = prompt["chat_template_kwargs"] | own
    more = {name: value for name, value in more.items() if value is not None}
    return validate_known(prompt | given | more, ChatRequest, notes)


def to_prompt_request(body: ConversationFields, notes: Notes, *, drops_billing: bool = True) -> ChatRequest:
    """Return a chat request with the same prompt. Raises BadRequestError as to_chat_request() does."""
    return validate_known(_prompt_fields(body, drops_billing), ChatRequest, notes)


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
