"""Make the ids of responses and of the items in their input and output."""

from reprise.server.output.openai_format import ResponseHead

_PREFIX = "resp_"


def response_id(head: ResponseHead) -> str:
    """Return the id of the response to a request."""
    return f"{_PREFIX}{head.id}"


def head_id(response_id: str) -> str:
    """Return the id of the ResponseHead from which a response's id was made."""
    return response_id.removeprefix(_PREFIX)


def item_id(head: ResponseHead, prefix: str, index: int) -> str:
    """Return the id of an item.

    prefix: msg, rs, fc or fco, by the item's type.
    index: position among the request's own input items and the output items, counted together.
    """
    return f"{prefix}_{head.id}{index:04x}"
