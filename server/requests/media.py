"""Images and other media in messages. No URL is ever opened."""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

Detail = Literal["low", "high", "auto"]

NO_URLS = (
    "is at a URL or in a file: this server opens none for requests. Send the image itself, as a data: URL "
    "in base64"
)
UNOPENED = "has no data here, and this server opens no URLs and no files for requests"
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
_DATA_KEYS = ("file_data", "data")
_DOCUMENT_KEYS = (*_DATA_KEYS, "url", "file_url", "source", "file")
"""Where a document may be: as a data: URL, under the first two also as base64."""
_DETAILS: dict[Any, Detail] = {"low": "low", "high": "high", "original": "high"}


@dataclass(frozen=True, slots=True)
class Media:
    """A non-text part of a message, hidden from text-only models.

    kind: image, audio, video or document. name: the part's title, or "". at: the part's path in the request.
    Images and documents have data (base64) or the fault why there is none; images have a detail.
    """

    kind: str
    name: str = ""
    at: str = field(default="", compare=False)
    data: str = field(default="", repr=False)
    fault: str = ""
    detail: Detail = "auto"

    def __str__(self) -> str:
        # The same in every turn: no sizes, no dates.
        return f"[{self.kind}{self.name and ' ' + self.name}: {self.unread}]"

    @property
    def unread(self) -> str:
        """Why a model that reads text has only a placeholder of it."""
        return f"it {self.fault}" if self.kind == "document" and self.fault else "this model reads text"


def image_of(given: dict[str, Any], path: str) -> Media:
    """Return the image in a message's part, in any API's form."""
    holders = (given.get(key) for key in ("image_url", "source", "image"))
    holder = next((one for one in holders if one is not None), None)
    inner = holder if isinstance(holder, dict) else {}
    wished = (one for one in (inner.get("detail"), given.get("detail")) if isinstance(one, str) and one)
    detail = _DETAILS.get(next(wished, ""), "auto")
    has_data = inner.get("type") == "base64" or isinstance(inner.get("data"), str)
    source = holder if isinstance(holder, str) else inner.get("data" if has_data else "url")
    return image(source, path, detail)


def document_of(given: dict[str, Any], name: str, path: str) -> Media:
    """Return the document in a message's part, in any API's form; with a fault if it has no base64."""
    holders = [given, *(one for key in ("source", "file") if isinstance(one := given.get(key), dict))]
    sent = [(key, one.get(key)) for one in holders for key in _DOCUMENT_KEYS if one.get("type") != "text"]
    for key, value in sent:
        if not isinstance(value, str):
            continue
        url = _DATA_URL.match(value)
        if url or (key in _DATA_KEYS and ":" not in value[:100]):
            return Media("document", name, at=path, data=value[url.end() :] if url else value)
    return Media("document", name, fault=UNOPENED)


def image(source: Any, path: str, detail: Detail = "auto") -> Media:
    """Return an image; if unreadable, with a fault instead of data. source: a data: URL or base64."""
    data = fault = ""
    if not isinstance(source, str) or not source:
        fault = "has no image: send one as a data: URL in base64"
    elif (url := _DATA_URL.match(source)) is not None:
        data = source[url.end() :]
    elif ":" in source[:100]:
        is_data = source[:5].lower() == "data:"
        fault = "is a data: URL that is not in base64" if is_data else NO_URLS
    else:
        data = source
    return Media("image", at=path, data=data, fault=fault, detail=detail)
