"""POST /v1/responses, and the endpoints for stored responses."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic_core import from_json, to_json

from server.conversation.from_items import as_listed, kind_of
from server.errors import BadRequestError, ContextLengthError, NotFoundError
from server.fair_queue import beside
from server.generation.chat import answer_chat, check_tools
from server.generation.engine_requests.token_limits import check_ids
from server.generation.model_use import serve_model, silence_of
from server.generation.respond import response_head
from server.generation.service import Service, service_of
from server.generation.sse import known_stream
from server.http.openapi import body_schema, query_schema
from server.http.request_log import note_ignored, record_of, rename_relaxed
from server.http.tenants import key_digest
from server.output.openai_format import ResponseHead
from server.requests.chat import ChatRequest
from server.responses_api.compaction import CompactionPresenter, CompactRequest
from server.responses_api.ids import item_id
from server.responses_api.presenter import ResponsePresenter
from server.responses_api.queries import GetQuery, ListQuery, page
from server.responses_api.replay import replay
from server.responses_api.schemas import ResponsesRequest
from server.responses_api.store import ResponseStore, stored_response
from server.responses_api.to_chat import PREVIOUS, ChatConversion, request_name, with_request_names
from server.threads import FORMAT
from server.validation.body import read_body, read_query
from server.validation.notes import Notes

router = APIRouter()
MAX_NAMED = 16_384
"""Maximum stored items that one request continues or refers to."""
MAX_REPEATED_BYTES = 2**20
"""Of a longer body the response repeats neither instructions nor tools, as every event of a stream would."""
ITEM_BYTES = 400
"""The work of translating an item, in bytes of text."""
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
    return await serve_model(
        request, body.model, answer, silence=silence_of(body.stream), keep_alive=body.keep_alive
    )


async def _answer(request: Request, body: ResponsesRequest, service: Service) -> Response:
    head = response_head(request, service, body.model)
    conversion, chat, stored_input = await _convert(request, service, body, head)

    def store(response: dict[str, Any]) -> None:
        if body.store:
            stored = stored_response(response, conversion.previous, stored_input)
            add, owner = service.responses.add, key_digest(request)
            service.call_on_loop(lambda: add(owner, str(response["id"]), stored))

    repeats = len(await request.body()) <= MAX_REPEATED_BYTES
    num_items, tools = len(conversion.items), conversion.shown_tools
    presenter = ResponsePresenter(head, body, num_items, store, tools, repeats=repeats)
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
    _, chat, _ = await _convert(request, service, body)
    try:
        check_tools(service, chat)
        check_ids(chat, service.engine.info)
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
    asked = await beside(request, partial(body.asked, context_tokens))
    conversion, chat, _ = await _convert(request, service, asked)
    items = [*conversion.earlier, *conversion.items[:-1]]
    presenter = CompactionPresenter(head, asked, items, context_tokens)
    try:
        return await answer_chat(request, service, chat, presenter)
    except BadRequestError as fault:
        raise with_request_names(fault) from fault


@router.get("/v1/responses/{response_id}", openapi_extra=query_schema(GetQuery))
async def get_response(request: Request, response_id: str) -> Response:
    """Return a stored response, or stream it again."""
    query = read_query(request, GetQuery)
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
async def list_input_items(request: Request, response_id: str) -> Response:
    """List the input items of a stored response, without those of the responses that it continues."""
    query = read_query(request, ListQuery)
    stored = service_of(request).responses.find(key_digest(request), response_id)
    num_input, items = stored.turn.num_input, stored.turn.items_json
    listed = page(stored.item_ids[:num_input], items[:num_input], query)
    return Response(listed, media_type="application/json")


StoredInput = list[tuple[str, bytes]]
"""Items as they are stored: id and JSON."""


async def _convert(
    request: Request, service: Service, body: ResponsesRequest, head: ResponseHead | None = None
) -> tuple[ChatConversion, ChatRequest, StoredInput]:
    """Return a request as a chat, with the stored responses and items that it names.

    head: of the response, for which the input is then stored.
    Raises NotFoundError, and BadRequestError if too much is named.
    """
    owner, store = key_digest(request), service.responses
    previous = None
    if body.previous_response_id is not None:
        code = "previous_response_not_found"
        previous = store.find(owner, body.previous_response_id, PREVIOUS, code).turn
    notes = Notes(service.settings.unknown_fields == "refuse")
    given = [*body.conversation, *body.input]
    found = _referred(given, store, owner, notes)
    named = [*found.values(), *(previous.history() if previous else ())]
    num_bytes = sum(map(len, named))
    if len(named) > MAX_NAMED or num_bytes > max(service.settings.max_body_bytes, store.max_bytes):
        message = (
            f"The stored items that the request continues or refers to are {len(named)} and have {num_bytes} "
            f"bytes; at most {MAX_NAMED} items and {service.settings.max_body_bytes} bytes are allowed. "
            "Compact the conversation (POST /v1/responses/compact), or begin a new one."
        )
        raise BadRequestError(message, param=PREVIOUS if previous else "input", code="invalid_value")

    def convert() -> tuple[ChatConversion, ChatRequest, StoredInput]:
        read = {item: from_json(item) for item in set(found.values())}
        items = [read[found[at]] if at in found else item for at, item in enumerate(given)]
        conversion = ChatConversion(body, previous, items, notes)
        stored: StoredInput = []
        if head is not None and body.store:
            for at, item in enumerate(items):
                one = item_id(head, _prefix(item), at)
                stored.append((one, to_json(as_listed(item, one))))
        return conversion, conversion.chat(), stored

    weight = len(await request.body()) + num_bytes + ITEM_BYTES * (len(given) + len(named))
    try:
        return await service.bodies.run(request, weight, convert)
    finally:
        note_ignored(request, notes.entries())


def _referred(given: Sequence[Any], store: ResponseStore, owner: str, notes: Notes) -> dict[int, bytes]:
    """Return the items that references mean, by their places. One not stored any more is left out."""
    found: dict[int, bytes] = {}
    for at, item in enumerate(given):
        is_reference = isinstance(item, dict) and kind_of(item) == "item_reference"
        if is_reference and isinstance(item.get("id"), str):
            try:
                found[at] = store.find_item(owner, item["id"], f"input[{at}].id")
            except NotFoundError:
                if notes.refuses:
                    raise
    return found


def _prefix(item: Any) -> str:
    kind = kind_of(item) if isinstance(item, dict) else "message"
    return _PREFIXES.get(kind, "item")
