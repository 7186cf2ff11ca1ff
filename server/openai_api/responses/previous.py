"""Find the stored response and items that a request names, and convert the request with them to a chat."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json, to_json

from reprise.server.errors import BadRequestError, NotFoundError
from reprise.server.openai_api.responses.items import PREVIOUS, ChatConversion, as_listed, kind_of
from reprise.server.openai_api.responses.presenter import item_id
from reprise.server.openai_api.responses.schemas import ResponsesRequest
from reprise.server.openai_api.responses.store import ResponseStore, Turn
from reprise.server.output.presenter import ResponseHead
from reprise.server.requests.chat import ChatRequest
from reprise.server.validation.notes import Notes

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


@dataclass(frozen=True, slots=True)
class Named:
    """The items of a request, and the stored response and items that the request names.

    given: the request's items. referred: the JSON of the stored item for each item_reference, by its index in
        given.
    previous: the last turn of the conversation that the request continues.
    num_items, num_bytes: the number and the JSON bytes of all named items, those of earlier turns included.
    """

    given: Sequence[Any]
    referred: dict[int, bytes]
    previous: Turn | None
    num_items: int
    num_bytes: int


def find_named(
    body: ResponsesRequest, store: ResponseStore, owner: str, notes: Notes, max_body_bytes: int
) -> Named:
    """Find the stored response and items that a request names.

    Raises NotFoundError, and BadRequestError if too many items or bytes are named.
    """
    previous = None
    if body.previous_response_id is not None:
        code = "previous_response_not_found"
        previous = store.find(owner, body.previous_response_id, PREVIOUS, code).turn
    given = [*body.conversation, *body.input]
    found = _referred(given, store, owner, notes)
    named = [*found.values(), *(previous.history() if previous else ())]
    num_bytes = sum(map(len, named))
    if len(named) > MAX_NAMED or num_bytes > max(max_body_bytes, store.max_bytes):
        message = (
            f"The stored items that the request continues or refers to are {len(named)} and have {num_bytes} "
            f"bytes; at most {MAX_NAMED} items and {max_body_bytes} bytes are allowed. "
            "Compact the conversation (POST /v1/responses/compact), or begin a new one."
        )
        raise BadRequestError(message, param=PREVIOUS if previous else "input", code="invalid_value")
    return Named(given, found, previous, len(named), num_bytes)


def convert(
    body: ResponsesRequest, named: Named, notes: Notes, head: ResponseHead | None
) -> tuple[ChatConversion, ChatRequest, StoredInput]:
    """Convert a request, with the stored items that it names, to a chat request.

    head: the response's head; None if there will be no response to store. Raises BadRequestError.
    Returns the conversion, the chat request, and the input items to store, if any.
    """
    read = {item: from_json(item) for item in set(named.referred.values())}
    items = [
        read[named.referred[at]] if at in named.referred else item for at, item in enumerate(named.given)
    ]
    conversion = ChatConversion(body, named.previous, items, notes)
    stored: StoredInput = []
    if head is not None and body.store:
        for at, item in enumerate(items):
            one = item_id(head, _prefix(item), at)
            stored.append((one, to_json(as_listed(item, one))))
    return conversion, conversion.chat(), stored


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
