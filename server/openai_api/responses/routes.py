"""POST /v1/responses, and the responses that are kept."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic_core import from_json, to_json

from reprise.engine.interface.events import TokenLogprob
from reprise.server.conversation.model import Tool
from reprise.server.errors import ContextLengthError
from reprise.server.executor import FORMAT
from reprise.server.generation.lease import lease_for, lease_model
from reprise.server.generation.prepare import encode_prompt, prepare_chat
from reprise.server.generation.service import Service
from reprise.server.generation.stream import answer, known_stream, response_head
from reprise.server.http.access import key_digest
from reprise.server.http.body import read_body, read_query
from reprise.server.http.openapi import body_schema, query_schema
from reprise.server.http.request_log import note_ignored, record_of
from reprise.server.openai_api.responses.compaction import CompactionPresenter, CompactRequest
from reprise.server.openai_api.responses.items import ChatConversion
from reprise.server.openai_api.responses.presenter import Json, OutputItems, ResponsePresenter, frame, head_id
from reprise.server.openai_api.responses.previous import StoredInput, convert, find_named
from reprise.server.openai_api.responses.schemas import GetQuery, ListQuery, ResponsesRequest, page
from reprise.server.openai_api.responses.store import ResponseStore, StoredResponse, stored_response
from reprise.server.output.parts import EndPart, Part, ReasoningPart, TextPart, ToolCallPart
from reprise.server.output.presenter import ResponseHead
from reprise.server.prompt.limits import check_ids
from reprise.server.requests.chat import ChatRequest
from reprise.server.validation.notes import Notes

_NOT_BEFORE_THE_END = ("timings", "schema_valid")


def replay(stored: StoredResponse, after: int | None) -> bytes:
    """Return the events of a stored response whose sequence numbers are higher than after; None for all.

    Texts come whole, so there are fewer events than in the first stream. If after is beyond all of them,
    the last event still comes: a client that lost the end of the first stream must see it.
    """
    response = from_json(stored.body)
    events = list(enumerate(_events(response, stored.turn.num_input)))
    kept = events if after is None else [(number, event) for number, event in events if number > after]
    if not kept and after is not None:
        kept = [(after + 1, events[-1][1])]
    return b"".join(frame(event, number) for number, event in kept)


def _events(response: Json, num_input: int) -> Iterator[Json]:
    started = {key: value for key, value in response.items() if key not in _NOT_BEFORE_THE_END}
    started |= dict.fromkeys(("completed_at", "incomplete_details", "usage"))
    started |= {"status": "in_progress", "output": []}
    for kind in ("created", "in_progress"):
        yield {"type": f"response.{kind}", "response": started}
    head = ResponseHead(head_id(response["id"]), response["created_at"], response["model"], "")
    given: list[Json] = response["output"]
    output = OutputItems(head, num_input, any("encrypted_content" in item for item in given), _tools(given))
    for part in _parts(given):
        yield from output.add(part)
    yield from output.add(EndPart("length" if response["status"] == "incomplete" else "stop"))
    yield {"type": f"response.{response['status']}", "response": response}


def _parts(items: list[Json]) -> Iterator[Part]:
    """Yield the parts that the items were built from. The tool of a call is named by the item's position."""
    for index, item in enumerate(items):
        match item["type"]:
            case "message":
                (content,) = item["content"]
                yield TextPart(content["text"], tuple(map(_logprob, content["logprobs"])))
            case "reasoning":
                yield ReasoningPart(item["content"][0]["text"])
            case "custom_tool_call":
                yield ToolCallPart(item["call_id"], str(index), to_json({"input": item["input"]}).decode())
            case _:
                yield ToolCallPart(item["call_id"], str(index), item["arguments"])


def _tools(items: list[Json]) -> list[Tool]:
    return [
        Tool(
            str(index),
            None,
            {},
            is_custom=item["type"] == "custom_tool_call",
            own_name=item["name"],
            namespace=item.get("namespace"),
        )
        for index, item in enumerate(items)
        if "call_id" in item
    ]


def _logprob(entry: dict[str, Any]) -> TokenLogprob:
    """Return an entry as it came from the engine. The id, which nothing shows, is not stored."""
    top = tuple((0, bytes(one["bytes"]), one["logprob"]) for one in entry["top_logprobs"])
    return TokenLogprob(0, bytes(entry["bytes"]), entry["logprob"], top)


router = APIRouter()


def _store_of(request: Request) -> ResponseStore:
    store: ResponseStore = request.app.state.responses
    return store


MAX_REPEATED_BYTES = 2**20
"""Of a longer body the response repeats neither instructions nor tools, as every event of a stream would."""
ITEM_BYTES = 400
"""The work of translating an item, in bytes of text."""


@router.post("/v1/responses", openapi_extra=body_schema(ResponsesRequest))
async def create_response(request: Request) -> Response:
    """Generate a response, which may continue an earlier one."""
    body = await read_body(request, ResponsesRequest)
    service = await lease_for(request, body)
    head = response_head(request, service, body.model)
    conversion, chat, stored_input = await _convert(request, service, body, head)

    def store(response: dict[str, Any]) -> None:
        if body.store:
            stored = stored_response(response, conversion.previous, stored_input)
            add, owner = _store_of(request).add, key_digest(request)
            service.call_on_loop(lambda: add(owner, str(response["id"]), stored))

    repeats = len(await request.body()) <= MAX_REPEATED_BYTES
    num_items, tools = len(conversion.items), conversion.shown_tools
    presenter = ResponsePresenter(head, body, num_items, store, tools, repeats=repeats)
    try:
        return await answer(request, service, partial(prepare_chat, request, service, chat), presenter)
    except ContextLengthError as fault:
        if not body.stream:
            raise
        # Codex takes a 400 for a mistake of its own and gives up.
        record_of(request).note(fault.CODE)
        opening = presenter.format_opening()
        return known_stream(opening + presenter.format_error(fault.worded(request.url.path)))


@router.post("/v1/responses/input_tokens", openapi_extra=body_schema(ResponsesRequest, is_streamed=False))
async def count_input_tokens(request: Request) -> Response:
    """Count the prompt tokens that this request would have at /v1/responses."""
    body = await read_body(request, ResponsesRequest)
    service = await lease_model(request, body.model)
    _, chat, _ = await _convert(request, service, body)

    def count() -> int:
        check_ids(chat, service.engine.info)
        return len(encode_prompt(request, service, chat).tokens)

    num_tokens = await service.prepare(request, count)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": num_tokens})


@router.post("/v1/responses/compact", openapi_extra=body_schema(CompactRequest))
async def compact_conversation(request: Request) -> Response:
    """Have the model summarise a conversation; what is returned can be sent in its place."""
    body = await read_body(request, CompactRequest)
    service = await lease_for(request, body)
    head = response_head(request, service, body.model)
    context_tokens = service.engine.info.context_tokens
    asked = await service.prepare(request, partial(body.asked, context_tokens))
    conversion, chat, _ = await _convert(request, service, asked)
    items = [*conversion.earlier, *conversion.items[:-1]]
    presenter = CompactionPresenter(head, asked, items, context_tokens)
    return await answer(request, service, partial(prepare_chat, request, service, chat), presenter)


@router.get("/v1/responses/{response_id}", openapi_extra=query_schema(GetQuery))
async def get_response(request: Request, response_id: str) -> Response:
    """Return a stored response, or stream it again."""
    query = read_query(request, GetQuery)
    stored = _store_of(request).find(key_digest(request), response_id)
    if query.stream == "true":
        # Off the event loop: a long text with log probabilities takes a while.
        return known_stream(await FORMAT.run(replay, stored, query.starting_after))
    return Response(stored.body, media_type="application/json")


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(request: Request, response_id: str) -> Response:
    """Return a stored response as it is. It was stored when it was complete, so nothing is left to cancel."""
    stored = _store_of(request).find(key_digest(request), response_id)
    return Response(stored.body, media_type="application/json")


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> JSONResponse:
    """Delete a stored response. Responses that continue it stay usable."""
    _store_of(request).remove(key_digest(request), response_id)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


@router.get("/v1/responses/{response_id}/input_items", openapi_extra=query_schema(ListQuery))
async def list_input_items(request: Request, response_id: str) -> Response:
    """List the input items of a stored response, without those of the responses that it continues."""
    query = read_query(request, ListQuery)
    stored = _store_of(request).find(key_digest(request), response_id)
    num_input, items = stored.turn.num_input, stored.turn.items_json
    listed = page(stored.item_ids[:num_input], items[:num_input], query)
    return Response(listed, media_type="application/json")


async def _convert(
    request: Request, service: Service, body: ResponsesRequest, head: ResponseHead | None = None
) -> tuple[ChatConversion, ChatRequest, StoredInput]:
    """Return a request as a chat, with the stored responses and items that it names.

    head: of the response, for which the input is then stored.
    Raises NotFoundError, and BadRequestError if too much is named.
    """
    notes = Notes(service.settings.unknown_fields == "refuse")
    named = find_named(body, _store_of(request), key_digest(request), notes, service.settings.max_body_bytes)
    more_bytes = named.num_bytes + ITEM_BYTES * (len(named.given) + named.num_items)
    try:
        return await service.prepare(request, partial(convert, body, named, notes, head), more_bytes)
    finally:
        note_ignored(request, notes.entries())
