"""POST /v1/responses, and the endpoints for stored responses."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from server.conversation.from_items import as_listed, kind_of
from server.errors import BadRequestError, ContextLengthError, NotFoundError
from server.generation.chat import answer_chat, check_tools
from server.generation.model_use import serve_model
from server.generation.respond import response_head
from server.generation.service import Service, service_of
from server.generation.sse import known_stream
from server.http.openapi import body_schema, query_schema
from server.http.request_log import note_ignored, record_of, rename_relaxed
from server.http.tenants import key_digest
from server.responses_api.compaction import CompactionPresenter, CompactRequest
from server.responses_api.ids import item_id
from server.responses_api.presenter import ResponsePresenter
from server.responses_api.queries import GetQuery, ListQuery, page
from server.responses_api.replay import replay
from server.responses_api.schemas import ResponsesRequest
from server.responses_api.store import ResponseStore
from server.responses_api.to_chat import PREVIOUS, ChatConversion, request_name, with_request_names
from server.threads import FORMAT
from server.validation.body import read_body
from server.validation.field_errors import validate
from server.validation.notes import Notes

router = APIRouter()
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}


@router.post("/v1/responses", openapi_extra=body_schema(ResponsesRequest))
async def create_response(request: Request) -> Response:
    """Generate a response, which may continue an earlier one."""
    body = await read_body(request, ResponsesRequest)
    answer = partial(_answer, request, body)
    return await serve_model(request, body.model, answer, stream=body.stream, keep_alive=body.keep_alive)


async def _answer(request: Request, body: ResponsesRequest, service: Service) -> Response:
    head = response_head(request, service, body.model)
    conversion = _conversion(request, service, body)
    chat, input_items = conversion.chat(), conversion.items

    def store(response: dict[str, Any]) -> None:
        if body.store:
            stored_input = [
                as_listed(item, item_id(head, _prefix(item), i)) for i, item in enumerate(input_items)
            ]
            all_items = stored_input + response["output"]
            add = service.responses.add
            service.call_on_loop(
                lambda: add(key_digest(request), response, conversion.previous, all_items, len(stored_input))
            )

    presenter = ResponsePresenter(head, body, len(input_items), store, conversion.shown_tools)
    try:
        response = await answer_chat(request, service, chat, presenter)
    except BadRequestError as fault:
        named = with_request_names(fault)
        if not (body.stream and isinstance(fault, ContextLengthError)):
            raise named from fault
        # Codex takes a 400 for a mistake of its own and gives up.
        record_of(request).note(fault.CODE)
        opening = presenter.format_opening()
        return known_stream(opening + presenter.format_error(named.worded(request.url.path)))
    rename_relaxed(request, request_name)
    return response


@router.post("/v1/responses/input_tokens", openapi_extra=body_schema(ResponsesRequest, is_streamed=False))
async def count_input_tokens(request: Request) -> Response:
    """Count the prompt tokens that this request would have at /v1/responses."""
    body = await read_body(request, ResponsesRequest)
    return await serve_model(request, body.model, partial(_count, request, body))


async def _count(request: Request, body: ResponsesRequest, service: Service) -> Response:
    conversion = _conversion(request, service, body)
    chat = conversion.chat()
    try:
        check_tools(service, chat)
        prompt = await service.prompts.encode_chat(request, chat)
    except BadRequestError as fault:
        raise with_request_names(fault) from fault
    return JSONResponse({"object": "response.input_tokens", "input_tokens": len(prompt.tokens)})


@router.post("/v1/responses/compact", openapi_extra=body_schema(CompactRequest))
async def compact_conversation(request: Request) -> Response:
    """Have the model summarise a conversation; what is returned can be sent in its place."""
    body = await read_body(request, CompactRequest)
    return await serve_model(request, body.model, partial(_compact, request, body))


async def _compact(request: Request, body: CompactRequest, service: Service) -> Response:
    head = response_head(request, service, body.model)
    context_tokens = service.engine.info.context_tokens
    asked = body.asked(context_tokens)
    conversion = _conversion(request, service, asked)
    chat = conversion.chat()
    earlier = conversion.previous.conversation() if conversion.previous else []
    presenter = CompactionPresenter(head, asked, [*earlier, *conversion.items[:-1]], context_tokens)
    try:
        return await answer_chat(request, service, chat, presenter)
    except BadRequestError as fault:
        raise with_request_names(fault) from fault


@router.get("/v1/responses/{response_id}", openapi_extra=query_schema(GetQuery))
async def get_response(request: Request, response_id: str) -> Response:
    """Return a stored response, or stream it again."""
    query = validate(dict(request.query_params), GetQuery)
    stored = service_of(request).responses.find(key_digest(request), response_id)
    if query.stream == "true":
        # Off the event loop: a long text with log probabilities takes a while.
        return known_stream(await FORMAT.run(replay, stored, query.starting_after))
    return Response(stored.body, media_type="application/json")


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(request: Request, response_id: str) -> Response:
    """Return a stored response as it is. It was stored when it was complete, so nothing is left to cancel."""
    stored = service_of(request).responses.find(key_digest(request), response_id)
    return Response(stored.body, media_type="application/json")


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> JSONResponse:
    """Delete a stored response. Responses that continue it stay usable."""
    service_of(request).responses.remove(key_digest(request), response_id)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


@router.get("/v1/responses/{response_id}/input_items", openapi_extra=query_schema(ListQuery))
async def list_input_items(request: Request, response_id: str) -> JSONResponse:
    """List the input items of a stored response, without those of the responses that it continues."""
    query = validate(dict(request.query_params), ListQuery)
    turn = service_of(request).responses.find(key_digest(request), response_id).turn
    return JSONResponse(page(turn.items()[: turn.num_input], query))


def _conversion(request: Request, service: Service, body: ResponsesRequest) -> ChatConversion:
    """Resolve the stored responses and items that the request names. Raises NotFoundError."""
    owner, store = key_digest(request), service.responses
    previous = None
    if body.previous_response_id is not None:
        code = "previous_response_not_found"
        previous = store.find(owner, body.previous_response_id, PREVIOUS, code).turn
    notes = Notes(service.settings.unknown_fields == "refuse")
    given = enumerate([*body.conversation, *body.input])
    items = [_resolved(item, store, owner, f"input[{at}]", notes) for at, item in given]
    conversion = ChatConversion(body, previous, items, notes)
    note_ignored(request, notes.entries())
    return conversion


def _resolved(item: Any, store: ResponseStore, owner: str, at: str, notes: Notes) -> Any:
    """Return the item that is meant by a reference. One that is not stored any more is left out."""
    if not isinstance(item, dict) or kind_of(item) != "item_reference" or not isinstance(item.get("id"), str):
        return item
    try:
        return store.find_item(owner, item["id"], f"{at}.id")
    except NotFoundError:
        if notes.refuses:
            raise
        return item


def _prefix(item: Any) -> str:
    kind = kind_of(item) if isinstance(item, dict) else "message"
    return _PREFIXES.get(kind, "item")
