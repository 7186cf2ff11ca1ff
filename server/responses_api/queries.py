"""Query parameters of the endpoints for stored responses."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from server.validation.field_errors import field_error
from server.validation.fields import RequestModel, unsupported

MAX_LISTED = 100

_INCLUDE = unsupported(
    phrase="is not supported; a stored response has what its own request included",
    description="Not supported; a stored response has what its own request included.",
    is_needed=True,
)


class GetQuery(RequestModel):
    """Query of GET /v1/responses/{response_id}."""

    include: _INCLUDE = None  # type: ignore[valid-type]
    include_obfuscation: Literal["true", "false"] | None = Field(
        None, description="Accepted; there are no events to pad."
    )
    stream: unsupported(  # type: ignore[valid-type]
        "false", phrase="must be false: stored responses cannot be streamed", is_needed=True
    ) = None
    starting_after: unsupported(  # type: ignore[valid-type]
        phrase="is not supported: stored responses cannot be streamed", is_needed=True
    ) = None


_LimitSchema = Annotated[int, Field(ge=1, le=MAX_LISTED)]


def _limit(given: object) -> object:
    if not isinstance(given, str) or not given.isascii() or not given.isdigit() or len(given) > 3:
        raise field_error("invalid_type", f"must be a number from 1 to {MAX_LISTED}")
    return int(given)


class ListQuery(RequestModel):
    """Query of GET /v1/responses/{response_id}/input_items."""

    limit: Annotated[int, BeforeValidator(_limit, _LimitSchema), Field(ge=1, le=MAX_LISTED)] = Field(
        20, description="Maximum number of items to list."
    )
    order: Literal["asc", "desc"] = Field("desc", description="asc: oldest item first; desc: newest first.")
    after: str | None = Field(None, description="The id of the previous page's last item.")
    include: _INCLUDE = None  # type: ignore[valid-type]


def page(items: list[dict[str, Any]], query: ListQuery) -> dict[str, Any]:
    """Return a page of the items as an OpenAI list. It is empty if query.after is not among the items."""
    ordered = items if query.order == "asc" else items[::-1]
    if query.after is not None:
        ids = [item["id"] for item in ordered]
        ordered = ordered[ids.index(query.after) + 1 :] if query.after in ids else []
    listed = ordered[: query.limit]
    return {
        "object": "list",
        "data": listed,
        "first_id": listed[0]["id"] if listed else "",
        "last_id": listed[-1]["id"] if listed else "",
        "has_more": len(listed) < len(ordered),
    }
