"""Query parameters of the endpoints for stored responses."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import to_json

from reprise.server.validation.field_errors import field_error
from reprise.server.validation.fields import RequestModel, no_effect

MAX_LISTED = 100
MAX_POSITION = 999_999_999
"""Maximum number of an event that a client can name: more digits would only cost time."""

_INCLUDE = no_effect("a stored response has what its own request included.")


def _number(least: int, most: int) -> Any:
    """Return the type of a number from least to most that is written in digits."""
    bounds = Field(ge=least, le=most)

    def read(given: object) -> object:
        is_number = isinstance(given, str) and given.isascii() and given.isdigit()
        if not is_number or len(str(given)) > len(str(most)):
            raise field_error("invalid_type", f"must be a number from {least} to {most}")
        return int(str(given))

    return Annotated[int, BeforeValidator(read, Annotated[int, bounds]), bounds]


class GetQuery(RequestModel):
    """Query of GET /v1/responses/{response_id}."""

    include: _INCLUDE = None  # type: ignore[valid-type]
    include_obfuscation: Literal["true", "false"] | None = Field(
        None, description="Accepted; there are no events to pad."
    )
    stream: Literal["true", "false"] | None = Field(
        None, description="true: as a stream. Texts come whole, so its events are fewer than at first."
    )
    starting_after: _number(0, MAX_POSITION) = Field(  # type: ignore[valid-type]
        None, description="With stream: the number of the last event to leave out."
    )


class ListQuery(RequestModel):
    """Query of GET /v1/responses/{response_id}/input_items."""

    limit: _number(0, MAX_LISTED) = Field(  # type: ignore[valid-type]
        20, description="Maximum number of items to list."
    )
    order: Literal["asc", "desc"] = Field("desc", description="asc: oldest item first; desc: newest first.")
    after: str | None = Field(None, description="The id of the previous page's last item.")
    include: _INCLUDE = None  # type: ignore[valid-type]


def page(ids: Sequence[str], items: Sequence[bytes], query: ListQuery) -> bytes:
    """Return a page of items as an OpenAI list, as JSON. It is empty if query.after is not among the items.

    ids, items: each item's id, and its JSON.
    """
    ordered = list(zip(ids, items, strict=True))
    if query.order == "desc":
        ordered.reverse()
    if query.after is not None:
        at = next((index for index, (item_id, _) in enumerate(ordered) if item_id == query.after), None)
        ordered = [] if at is None else ordered[at + 1 :]
    listed = ordered[: query.limit]
    rest = {
        "first_id": listed[0][0] if listed else "",
        "last_id": listed[-1][0] if listed else "",
        "has_more": len(listed) < len(ordered),
    }
    return b'{"object":"list","data":[%b],%b' % (b",".join(item for _, item in listed), to_json(rest)[1:])
