"""Find the images in parts of messages. Whether a model is shown them is known once the model is."""

import re
from typing import Any

from reprise.server.conversation.model import Detail, Json, Media

NO_URLS = (
    "is at a URL or in a file: this server opens none for requests. Send the image itself, as a data: URL "
    "in base64"
)
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
_DETAILS: dict[Any, Detail] = {"low": "low", "high": "high", "original": "high"}


def image_of(given: Json, path: str) -> Media:
    """Return the image of a message's part, which may have the form of any of the APIs."""
    holder = next(
        (one for key in ("image_url", "source", "image") if (one := given.get(key)) is not None), None
    )
    inner = holder if isinstance(holder, dict) else {}
    detail = _DETAILS.get(_text(inner.get("detail")) or _text(given.get("detail")), "auto")
    if inner.get("type") == "base64" or (inner and isinstance(inner.get("data"), str)):
        return image(inner.get("data"), path, detail)
    return image(holder if isinstance(holder, str) else inner.get("url"), path, detail)


def image(source: Any, path: str, detail: Detail = "auto") -> Media:
    """Return an image; one that cannot be read has a fault instead of data. source: a data: URL or base64."""
    if not isinstance(source, str) or not source:
        return Media("image", at=path, fault="has no image: send one as a data: URL in base64", detail=detail)
    if (url := _DATA_URL.match(source)) is not None:
        return Media("image", at=path, data=source[url.end() :], detail=detail)
    if ":" in source[:100]:
        is_data = source[:5].lower() == "data:"
        fault = "is a data: URL that is not in base64" if is_data else NO_URLS
        return Media("image", at=path, fault=fault, detail=detail)
    return Media("image", at=path, data=source, detail=detail)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
