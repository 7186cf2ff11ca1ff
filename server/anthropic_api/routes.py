"""POST /v1/messages and /v1/messages/count_tokens."""

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from reprise.server.anthropic_api.conversation import kept_system
from reprise.server.anthropic_api.presenter import MessagePresenter
from reprise.server.anthropic_api.schemas import ConversationFields, CountTokensRequest, MessagesRequest
from reprise.server.generation.lease import lease_for
from reprise.server.generation.prepare import Prepared, encode_prompt, prepare_chat
from reprise.server.generation.service import LeasedModel
from reprise.server.generation.stream import answer, response_head
from reprise.server.http.body import read_body
from reprise.server.http.openapi import body_schema
from reprise.server.http.request_log import note_ignored, record_of
from reprise.server.requests.chat import ChatRequest, extended
from reprise.server.requests.generation_fields import WindowFields
from reprise.server.requests.messages import Message
from reprise.server.validation.fields import Notes, validate

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
    return validate(prompt | given | more, ChatRequest, notes)


def to_prompt_request(body: ConversationFields, notes: Notes, *, drops_billing: bool = True) -> ChatRequest:
    """Return a chat request with the same prompt. Raises BadRequestError as to_chat_request() does."""
    return validate(_prompt_fields(body, drops_billing), ChatRequest, notes)


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


router = APIRouter()
BodyT = TypeVar("BodyT", bound=ConversationFields)


@router.post("/v1/messages", openapi_extra=body_schema(MessagesRequest))
async def create_message(request: Request) -> Response:
    """Generate the next message of a conversation, in Anthropic's format."""
    body = await read_body(request, MessagesRequest)
    leased = await lease_for(request, body)
    presenter = MessagePresenter(response_head(request, leased, body.model), record_of(request).id, body)

    def prepare() -> Prepared:
        return prepare_chat(request, leased, _converted(request, leased, body, to_chat_request))

    return await answer(request, leased, prepare, presenter)


@router.post("/v1/messages/count_tokens", openapi_extra=body_schema(CountTokensRequest))
async def count_tokens(request: Request) -> Response:
    """Count the tokens of a conversation's prompt."""
    body = await read_body(request, CountTokensRequest)
    leased = await lease_for(request, body)

    def count() -> int:
        chat = _converted(request, leased, body, to_prompt_request)
        return len(encode_prompt(request, leased, chat).tokens)

    return JSONResponse({"input_tokens": await leased.prepare(request, count)})


def _converted(
    request: Request, leased: LeasedModel, body: BodyT, convert: Callable[..., ChatRequest]
) -> ChatRequest:
    """Return a request as a chat, without the billing line in its system prompt unless that is kept.

    Notes it if the line is there. Raises what convert raises.
    """
    drops = not leased.settings.keep_billing_line
    notes = Notes(leased.settings.unknown_fields == "refuse")
    chat = convert(body, notes, drops_billing=drops)
    note_ignored(request, notes.entries())
    if drops and kept_system(body.system) != body.system:
        note_ignored(request, ["system.x-anthropic-billing-header"])
    return chat
