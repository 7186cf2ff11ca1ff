"""POST /v1/responses, and the responses that are kept."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field
from pydantic_core import from_json, to_json

from reprise.engine.interface.events import TokenLogprob
from reprise.server.errors import BadRequestError, ContextLengthError, NotFoundError, RequestFailedError
from reprise.server.generation.answer import answer, known_stream, response_head
from reprise.server.generation.prepare import count_prompt_tokens, prepare_chat
from reprise.server.generation.service import LeasedModel, lease_for, lease_model
from reprise.server.http.access import key_digest
from reprise.server.http.body import read_body, read_query
from reprise.server.http.executor import FORMAT
from reprise.server.http.openapi import body_schema, query_schema
from reprise.server.http.request_log import note_ignored, record_of
from reprise.server.openai_api.responses.items import (
    PREVIOUS,
    ChatConversion,
    as_listed,
    encode_reasoning,
    kind_of,
)
from reprise.server.openai_api.responses.presenter import (
    PREFIX,
    OutputItems,
    ResponsePresenter,
    frame,
    item_id,
    response_id,
    timings_json,
    usage_json,
)
from reprise.server.openai_api.responses.schemas import GetQuery, Input, ListQuery, ResponsesRequest, page
from reprise.server.openai_api.responses.store import ResponseStore, StoredResponse, Turn, stored_response
from reprise.server.output.parts import ChoiceOutput, EndPart, Part, ReasoningPart, TextPart, ToolCallPart
from reprise.server.output.presenter import Json, ResponseHead
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.fields import AcceptsPeerFields, Notes, no_effect, unsupported, validate
from reprise.server.requests.messages import Tool

SHARE_OF_CONTEXT = 8
"""A summary takes at most one part in so many of the context."""
ASKED = (
    "Summarise this conversation for an assistant that will continue it and sees nothing of it but the "
    "user's messages and your summary. Say what the user wants, what was done and found out, which names, "
    "files and values matter, what was decided and why, and what is still to be done. Do not continue the "
    "conversation: write the summary alone."
)


def summary_tokens(context_tokens: int) -> int:
    """Return the maximum number of tokens of a summary."""
    return max(1, context_tokens // SHARE_OF_CONTEXT)


class CompactRequest(AcceptsPeerFields):
    """The body of POST /v1/responses/compact."""

    names = ResponsesRequest.names

    model: str | None = Field(None, description="As in POST /v1/responses.")
    input: Input = Field([], description="A string, or items. Optional with previous_response_id.")
    instructions: str | None = Field(None, description="A system message at the start, as in the session.")
    previous_response_id: str | None = Field(None, description="The id of a stored response to begin with.")
    prompt_cache_key: no_effect("prompts are cached by their content.") = None  # type: ignore[valid-type]
    prompt_cache_retention: no_effect("has no effect.") = None  # type: ignore[valid-type]
    prompt_cache_options: no_effect("prompts are cached by their content.") = None  # type: ignore[valid-type]
    service_tier: no_effect("there is one tier, default.") = None  # type: ignore[valid-type]
    image: unsupported() = None  # type: ignore[valid-type]

    def asked(self, context_tokens: int) -> ResponsesRequest:
        """Return the request whose answer is the summary: the conversation, then the demand to summarise."""
        given = {
            **self.model_dump(include={"model", "instructions", "previous_response_id"}),
            "input": [{"role": "user", "content": ASKED}],
            "max_output_tokens": summary_tokens(context_tokens),
            # A thought would take the room of the summary.
            "reasoning": {"effort": "none"},
            "store": False,
        }
        asked = validate(given, ResponsesRequest)
        # Not validated with these: the demand makes one item more than a client may send.
        return asked.model_copy(update={"input": [*self.input, *asked.input]})


class CompactionPresenter(ResponsePresenter):
    """Presenter for /v1/responses/compact, which does not stream.

    items: the conversation's items. context_tokens: the size of the model's context.
    """

    def __init__(
        self, head: ResponseHead, body: ResponsesRequest, items: Sequence[Any], context_tokens: int
    ) -> None:
        super().__init__(head, body, len(items), lambda _: None, ())
        self._items, self._context_tokens = items, context_tokens

    def format_response(self, outputs: Sequence[ChoiceOutput], usage: Json, timings: Json) -> bytes:
        """See Presenter. Raises ApiError if the summary is cut off: the client must keep its conversation."""
        (output,) = outputs
        summary, num_tokens = output.text.strip(), usage["completion_tokens"]
        if output.end.finish_reason == "length" and num_tokens < summary_tokens(self._context_tokens):
            way_out = f"It left only {num_tokens} tokens for a summary."
            raise ContextLengthError(usage["prompt_tokens"], self._context_tokens, "input", way_out)
        if not summary:
            message = "The model wrote no summary. Go on with the conversation as it is."
            raise RequestFailedError(message, code="no_summary")
        head = self._head
        users = [item for item in self._items if _is_users(item)]
        kept = [as_listed(item, item_id(head, "msg", index)) for index, item in enumerate(users)]
        compaction = {
            "id": item_id(head, "cmp", len(kept)),
            "type": "compaction",
            "encrypted_content": encode_reasoning(summary),
        }
        return to_json(
            {
                "id": response_id(head),
                "object": "response.compaction",
                "created_at": head.created,
                "output": [*kept, compaction],
                "usage": usage_json(usage),
                "timings": timings_json(timings),
            }
        )


def _is_users(item: Any) -> bool:
    if not isinstance(item, dict):
        return True
    return kind_of(item) == "message" and (item.get("role") or "user") == "user"


ITEM_BYTES = 400
"""The work of translating an item, in bytes of text."""
MAX_NAMED = 16_384
"""Maximum stored items that one request continues or refers to."""
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}

StoredInput = list[tuple[str, bytes]]
"""Items as they are stored: id and JSON."""


def find_named(
    body: ResponsesRequest, store: ResponseStore, owner: str, notes: Notes, max_body_bytes: int
) -> tuple[dict[int, bytes], Turn | None, int]:
    """Find the stored response and items that a request names.

    Returns the JSON of the stored item for each item_reference, by its index among the request's items; the
    last turn of the conversation that the request continues; and the work of translating all items, those of
    earlier turns included, in bytes of text.
    Raises NotFoundError, and BadRequestError if too many items or bytes are named.
    """
    previous = None
    if body.previous_response_id is not None:
        code = "previous_response_not_found"
        previous = store.find(owner, body.previous_response_id, PREVIOUS, code).turn
    given = [*body.conversation, *body.input]
    found: dict[int, bytes] = {}
    for at, item in enumerate(given):
        is_reference = isinstance(item, dict) and kind_of(item) == "item_reference"
        if is_reference and isinstance(item.get("id"), str):
            try:
                found[at] = store.find_item(owner, item["id"], f"input[{at}].id")
            except NotFoundError:
                # One that is not stored any more is left out.
                if notes.refuses:
                    raise
    named = [*found.values(), *(previous.history() if previous else ())]
    num_bytes = sum(map(len, named))
    if len(named) > MAX_NAMED or num_bytes > max(max_body_bytes, store.max_bytes):
        message = (
            f"The stored items that the request continues or refers to are {len(named)} and have {num_bytes} "
            f"bytes; at most {MAX_NAMED} items and {max_body_bytes} bytes are allowed. "
            "Compact the conversation (POST /v1/responses/compact), or begin a new one."
        )
        raise BadRequestError(message, param=PREVIOUS if previous else "input", code="invalid_value")
    return found, previous, num_bytes + ITEM_BYTES * (len(given) + len(named))


def convert(
    body: ResponsesRequest,
    referred: dict[int, bytes],
    previous: Turn | None,
    notes: Notes,
    head: ResponseHead | None,
) -> tuple[ChatConversion, ChatRequest, StoredInput]:
    """Convert a request, with the stored items that it names, to a chat request.

    referred, previous: see find_named(). head: the response's head; None if there will be no response to
        store. Raises BadRequestError.
    Returns the conversion, the chat request, and the input items to store, if any.
    """
    read = {item: from_json(item) for item in set(referred.values())}
    given = [*body.conversation, *body.input]
    items = [read[referred[at]] if at in referred else item for at, item in enumerate(given)]
    conversion = ChatConversion(body, previous, items, notes)
    stored: StoredInput = []
    if head is not None and body.store:
        for at, item in enumerate(items):
            kind = kind_of(item) if isinstance(item, dict) else "message"
            one = item_id(head, _PREFIXES.get(kind, "item"), at)
            stored.append((one, to_json(as_listed(item, one))))
    return conversion, conversion.chat(), stored


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
    started = {key: value for key, value in response.items() if key not in ("timings", "schema_valid")}
    started |= dict.fromkeys(("completed_at", "incomplete_details", "usage"))
    started |= {"status": "in_progress", "output": []}
    for kind in ("created", "in_progress"):
        yield {"type": f"response.{kind}", "response": started}
    head = ResponseHead(response["id"].removeprefix(PREFIX), response["created_at"], response["model"], "")
    given: list[Json] = response["output"]
    # The tool of a call is named by the item's position.
    tools = [
        Tool(
            str(index),
            None,
            {},
            is_custom=item["type"] == "custom_tool_call",
            own_name=item["name"],
            namespace=item.get("namespace"),
        )
        for index, item in enumerate(given)
        if "call_id" in item
    ]
    output = OutputItems(head, num_input, any("encrypted_content" in item for item in given), tools)
    for part in _parts(given):
        yield from output.add(part)
    yield from output.add(EndPart("length" if response["status"] == "incomplete" else "stop"))
    yield {"type": f"response.{response['status']}", "response": response}


def _parts(items: list[Json]) -> Iterator[Part]:
    """Yield the parts that the items were built from."""
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


def _logprob(entry: dict[str, Any]) -> TokenLogprob:
    """Return an entry as it came from the engine. The id, which nothing shows, is not stored."""
    top = tuple((0, bytes(one["bytes"]), one["logprob"]) for one in entry["top_logprobs"])
    return TokenLogprob(0, bytes(entry["bytes"]), entry["logprob"], top)


router = APIRouter()
BODIES = (ResponsesRequest, CompactRequest)


def _store_of(request: Request) -> ResponseStore:
    store: ResponseStore = request.app.state.responses
    return store


MAX_REPEATED_BYTES = 2**20
"""Of a longer body the response repeats neither instructions nor tools, as every event of a stream would."""


@router.post("/v1/responses", openapi_extra=body_schema(ResponsesRequest))
async def create_response(request: Request) -> Response:
    """Generate a response, which may continue an earlier one."""
    body = await read_body(request, ResponsesRequest)
    leased = await lease_for(request, body)
    head = response_head(request, leased, body.model)
    conversion, chat, stored_input = await _convert(request, leased, body, head)

    def store(response: dict[str, Any]) -> None:
        if body.store:
            stored = stored_response(response, conversion.previous, stored_input)
            add, owner = _store_of(request).add, key_digest(request)
            leased.app.call_on_loop(lambda: add(owner, str(response["id"]), stored))

    repeats = len(await request.body()) <= MAX_REPEATED_BYTES
    num_items, tools = len(conversion.items), conversion.shown_tools
    presenter = ResponsePresenter(head, body, num_items, store, tools, repeats=repeats)
    try:
        return await answer(request, leased, partial(prepare_chat, request, leased, chat), presenter)
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
    leased = await lease_model(request, body.model)
    _, chat, _ = await _convert(request, leased, body)
    num_tokens = await leased.run_in_turn(request, partial(count_prompt_tokens, request, leased, chat))
    return JSONResponse({"object": "response.input_tokens", "input_tokens": num_tokens})


@router.post("/v1/responses/compact", openapi_extra=body_schema(CompactRequest))
async def compact_conversation(request: Request) -> Response:
    """Have the model summarise a conversation; what is returned can be sent in its place."""
    body = await read_body(request, CompactRequest)
    leased = await lease_for(request, body)
    head = response_head(request, leased, body.model)
    context_tokens = leased.engine.info.context_tokens
    asked = await leased.run_in_turn(request, partial(body.asked, context_tokens))
    conversion, chat, _ = await _convert(request, leased, asked)
    items = [*conversion.earlier, *conversion.items[:-1]]
    presenter = CompactionPresenter(head, asked, items, context_tokens)
    return await answer(request, leased, partial(prepare_chat, request, leased, chat), presenter)


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
    request: Request, leased: LeasedModel, body: ResponsesRequest, head: ResponseHead | None = None
) -> tuple[ChatConversion, ChatRequest, StoredInput]:
    """Return a request as a chat, with the stored responses and items that it names.

    head: of the response, for which the input is then stored.
    Raises NotFoundError, and BadRequestError if too much is named.
    """
    notes = Notes(leased.settings.unknown_fields == "refuse")
    owner, max_body_bytes = key_digest(request), leased.settings.max_body_bytes
    referred, previous, work_bytes = find_named(body, _store_of(request), owner, notes, max_body_bytes)
    try:
        job = partial(convert, body, referred, previous, notes, head)
        return await leased.run_in_turn(request, job, work_bytes)
    finally:
        note_ignored(request, notes.entries())
