"""POST /v1/responses, and the routes of stored responses."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic_core import from_json, to_json

from reprise.server.errors import BadRequestError, ContextLengthError, NotFoundError
from reprise.server.generation.answer import answer, known_stream, response_head
from reprise.server.generation.prepare import count_prompt_tokens, default_loop_guard, prepare_chat
from reprise.server.generation.service import LeasedModel, lease_for, lease_model
from reprise.server.http.access import key_digest
from reprise.server.http.body import MAX_BODY_BYTES, read_body, read_query
from reprise.server.http.error_responses import note_error
from reprise.server.http.executor import FORMAT
from reprise.server.http.openapi import body_schema, query_schema
from reprise.server.http.request_log import note_ignored
from reprise.server.openai_api.responses.items import PREVIOUS, as_listed, kind_of, to_chat
from reprise.server.openai_api.responses.presenter import (
    CompactionPresenter,
    ResponsePresenter,
    item_id,
    replay,
)
from reprise.server.openai_api.responses.schemas import (
    CompactRequest,
    GetQuery,
    ListQuery,
    ResponsesRequest,
    page,
)
from reprise.server.openai_api.responses.store import ResponseStore, StoredResponse, Turn, stored_response
from reprise.server.output.presenter import Json, ResponseHead
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.fields import Notes

ITEM_BYTES = 400
"""The work of translating an item, in bytes of text."""
MAX_NAMED = 16_384
"""Maximum stored items that one request continues or refers to."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A Responses request translated to a chat.

    items: the input items, with references resolved. previous: the last turn of the conversation that the
    request continues; earlier: all of its items. stored: id and JSON of each input item that will be stored.
    """

    chat: ChatRequest
    items: list[Any]
    previous: Turn | None
    earlier: list[Json]
    stored: list[tuple[str, bytes]]


def find_named(
    body: ResponsesRequest, store: ResponseStore, owner: str, notes: Notes
) -> tuple[list[Any], Turn | None, int]:
    """Find the stored response and items that a request names.

    Returns the request's items, each item_reference replaced by the stored item's JSON bytes; the last turn
    of the conversation that the request continues; and the work of translating all items, earlier turns
    included, in bytes of text.
    Raises NotFoundError, and BadRequestError if too many items or bytes are named.
    """
    previous = None
    if body.previous_response_id is not None:
        code = "previous_response_not_found"
        previous = store.find(owner, body.previous_response_id, PREVIOUS, code).turn
    items = [*body.conversation, *body.input]
    for at, item in enumerate(items):
        if kind_of(item) == "item_reference" and isinstance(item.get("id"), str):
            try:
                items[at] = store.find_item(owner, item["id"], f"input[{at}].id")
            except NotFoundError:
                # One that is not stored any more is left out.
                if notes.refuses:
                    raise
    found = [item for item in items if isinstance(item, bytes)]
    named = [*found, *(previous.history() if previous else ())]
    num_bytes = sum(map(len, named))
    if len(named) > MAX_NAMED or num_bytes > max(MAX_BODY_BYTES, store.max_bytes):
        message = (
            f"The stored items that the request continues or refers to are {len(named)} and have {num_bytes} "
            f"bytes; at most {MAX_NAMED} items and {MAX_BODY_BYTES} bytes are allowed. "
            "Compact the conversation (POST /v1/responses/compact), or begin a new one."
        )
        raise BadRequestError(message, param=PREVIOUS if previous else "input", code="invalid_value")
    return items, previous, num_bytes + ITEM_BYTES * (len(items) + len(named))


router = APIRouter()
BODIES = (ResponsesRequest, CompactRequest)


def _store_of(request: Request) -> ResponseStore:
    store: ResponseStore = request.app.state.responses
    return store


def _stored(request: Request, response_id: str) -> StoredResponse:
    return _store_of(request).find(key_digest(request), response_id)


MAX_REPEATED_BYTES = 2**20
"""Of a longer body the response repeats neither instructions nor tools, as every event of a stream would."""


@router.post("/v1/responses", openapi_extra=body_schema(ResponsesRequest))
async def create_response(request: Request) -> Response:
    """Generate a response, which may continue an earlier one."""
    body = await read_body(request, ResponsesRequest)
    leased = await lease_for(request, body)
    head = response_head(request, leased, body.model)
    converted = await _convert(request, leased, body, head)
    chat = converted.chat

    def store(response: Json) -> None:
        if body.store:
            stored = stored_response(response, converted.previous, converted.stored)
            add, owner = _store_of(request).add, key_digest(request)
            leased.app.call_on_loop(lambda: add(owner, str(response["id"]), stored))

    repeats = len(await request.body()) <= MAX_REPEATED_BYTES
    presenter = ResponsePresenter(head, body, len(converted.items), store, chat.tools, repeats=repeats)
    try:
        return await answer(request, leased, partial(prepare_chat, request, leased, chat), presenter)
    except ContextLengthError as fault:
        if not body.stream:
            raise
        # Codex takes a 400 for a mistake of its own and gives up.
        told = note_error(fault, request.scope)
        return known_stream(presenter.format_opening() + presenter.format_error(told))


@router.post("/v1/responses/input_tokens", openapi_extra=body_schema(ResponsesRequest, is_streamed=False))
async def count_input_tokens(request: Request) -> Response:
    """Count the prompt tokens that this request would have at /v1/responses."""
    body = await read_body(request, ResponsesRequest)
    leased = await lease_model(request, body.model)
    converted = await _convert(request, leased, body)
    count = partial(count_prompt_tokens, request, leased, converted.chat)
    num_tokens = await leased.run_in_turn(request, count)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": num_tokens})


@router.post("/v1/responses/compact", openapi_extra=body_schema(CompactRequest))
async def compact_conversation(request: Request) -> Response:
    """Have the model summarise a conversation; what is returned can be sent in its place."""
    body = await read_body(request, CompactRequest)
    leased = await lease_for(request, body)
    head = response_head(request, leased, body.model)
    info = leased.engine.info
    guard = default_loop_guard(info, leased.settings)
    asked = await leased.run_in_turn(request, partial(body.asked, info.context_tokens, guard))
    converted = await _convert(request, leased, asked)
    items = [*converted.earlier, *converted.items[:-1]]
    presenter = CompactionPresenter(head, asked, items, info.context_tokens)
    prepare = partial(prepare_chat, request, leased, converted.chat)
    return await answer(request, leased, prepare, presenter)


@router.get("/v1/responses/{response_id}", openapi_extra=query_schema(GetQuery))
async def get_response(request: Request, response_id: str) -> Response:
    """Return a stored response, or stream it again."""
    query = read_query(request, GetQuery)
    stored = _stored(request, response_id)
    if query.stream == "true":
        # Off the event loop: a long text with log probabilities takes a while.
        return known_stream(await FORMAT.run(replay, stored, query.starting_after))
    return Response(stored.body, media_type="application/json")


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(request: Request, response_id: str) -> Response:
    """Return a stored response as it is. It was stored when it was complete, so nothing is left to cancel."""
    return Response(_stored(request, response_id).body, media_type="application/json")


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> JSONResponse:
    """Delete a stored response. Responses that continue it stay usable."""
    _store_of(request).remove(key_digest(request), response_id)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


@router.get("/v1/responses/{response_id}/input_items", openapi_extra=query_schema(ListQuery))
async def list_input_items(request: Request, response_id: str) -> Response:
    """List the input items of a stored response, without those of the responses that it continues."""
    query = read_query(request, ListQuery)
    stored = _stored(request, response_id)
    num_input, items = stored.turn.num_input, stored.turn.items_json
    listed = page(stored.item_ids[:num_input], items[:num_input], query)
    return Response(listed, media_type="application/json")


async def _convert(
    request: Request, leased: LeasedModel, body: ResponsesRequest, head: ResponseHead | None = None
) -> Converted:
    """Return a request as a chat, with the stored responses and items that it names.

    head: of the response; if given, the input is stored for it.
    Raises NotFoundError, and BadRequestError if too much is named.
    """
    notes = Notes(leased.settings.unknown_fields == "refuse")
    given, previous, work_bytes = find_named(body, _store_of(request), key_digest(request), notes)

    def convert() -> Converted:
        read = {item: from_json(item) for item in {one for one in given if isinstance(one, bytes)}}
        items = [read[one] if isinstance(one, bytes) else one for one in given]
        earlier = previous.conversation() if previous else []
        chat = to_chat(body, earlier, items, notes)
        stored = []
        if head is not None and body.store:
            for at, item in enumerate(items):
                one = item_id(head, kind_of(item), at)
                stored.append((one, to_json(as_listed(item, one))))
        return Converted(chat, items, previous, earlier, stored)

    try:
        return await leased.run_in_turn(request, convert, work_bytes)
    finally:
        note_ignored(request, notes.entries())
