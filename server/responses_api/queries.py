"""What may follow the question mark, where kept responses are asked for."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from server.validation.field_errors import field_error
from server.validation.fields import RequestModel, unsupported

MAX_LISTED = 100

_INCLUDE = unsupported(
    phrase="is not supported here: what the request itself included is there",
    description="Not supported: what the request itself included is there.",
)


class GetQuery(RequestModel):
    """How to show a response."""

    include: _INCLUDE = None  # type: ignore[valid-type]
    include_obfuscation: Literal["true", "false"] | None = Field(None, description="Accepted.")
    stream: unsupported("false", phrase="must be false: the response has been said") = None  # type: ignore[valid-type]
    starting_after: unsupported(phrase="goes with stream, which is not supported here") = None  # type: ignore[valid-type]


def _limit(given: object) -> object:
    if not isinstance(given, str) or not given.isascii() or not given.isdigit() or len(given) > 3:
        raise field_error("invalid_type", f"must be a number from 1 to {MAX_LISTED}")
    return int(given)


class ListQuery(RequestModel):
    """Which items to list."""

    limit: Annotated[int, BeforeValidator(_limit), Field(ge=1, le=MAX_LISTED)] = Field(
        20, description="How many to list."
    )
    order: Literal["asc", "desc"] = Field("desc", description="desc: the last item first.")
    after: str | None = Field(None, description="The item that the page before ended with.")
    include: _INCLUDE = None  # type: ignore[valid-type]


def page(items: list[dict[str, Any]], query: ListQuery) -> dict[str, Any]:
    """A list of items in OpenAI's shape; those after one that is not there are none."""
    ordered = items if query.order == "asc" else items[::-1]
    if query.after is not None:
        ids = [item["id"] for item in ordered]
        ordered = ordered[ids.index(query.after) + 1 :] if query.after in ids else []
    shown = ordered[: query.limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else "",
        "last_id": shown[-1]["id"] if shown else "",
        "has_more": len(shown) < len(ordered),
    }
