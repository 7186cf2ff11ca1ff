"""Read the parts of a message's content: text, images, and what is shown as text or left out."""

import json
import re
from collections.abc import Iterable
from typing import Any

from pydantic_core import from_json

from reprise.server.conversation.model import Detail, Json, Media, Part
from reprise.server.errors import BadRequestError
from reprise.server.validation.body import check_values
from reprise.server.validation.fields import INSIDE, MAX_NOTES, Notes

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


TEXTS = {
    **dict.fromkeys(("text", "input_text", "output_text", "summary_text", "reasoning_text"), "text"),
    "refusal": "refusal",
}
"""Parts that are text, and the key that holds it."""
OWN_TEXTS = {
    "chats": ("text", "refusal"),
    "messages": ("text",),
    "responses": ("input_text", "output_text", "refusal", "summary_text", "reasoning_text"),
}
"""The types of text that each API has. Others are understood."""
MEDIA = {
    **dict.fromkeys(("image", "image_url", "input_image", "computer_screenshot"), "image"),
    **dict.fromkeys(("audio", "input_audio"), "audio"),
    **dict.fromkeys(("video", "video_url"), "video"),
    **dict.fromkeys(("document", "file", "input_file"), "document"),
}
"""Parts that are shown as a placeholder, or as their text if they have some; images to a model that sees."""
LEFT_OUT = frozenset(
    (
        *("redacted_thinking", "container_upload", "fallback", "tool_addition", "tool_removal"),
        *("mcp_tool_listing", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
        *("compaction_trigger", "configuration_update", "ghost_snapshot", "item_reference"),
    )
)
"""Parts and items that hold nothing that a model could read."""
UNREADABLE = frozenset(
    (
        *("encrypted_content", "encrypted_index", "encrypted_stdout", "signature", "fingerprint"),
        *(
            "data",
            "file_data",
            "image_url",
            "b64_json",
            "result",
            "cache_control",
            "citations",
            "annotations",
        ),
        *("logprobs", "id", "call_id", "tool_use_id", "status", "type", "caller", "container_id", "file_id"),
        "pending_safety_checks",
    )
)
"""Keys that are left out of all other parts and items, which are shown as JSON: `[kind {...}]`."""
MAX_SHOWN = 100_000
"""Maximum characters of a part that is shown as JSON."""
MAX_DEPTH = 20
_NOTHING: tuple[Any, ...] = (None, {}, [], "")


def parts_of(content: Any, path: str, notes: Notes) -> list[Part]:
    """Convert the content of a message or a result, whatever was given, to the parts shown to the model.

    path: the content's path in the request.
    """
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if isinstance(content, list):
        return [p for i, one in enumerate(content) for p in part_of(one, f"{path}[{i}]", notes)]
    if isinstance(content, dict):
        notes.understood(path)
        return part_of(content, path, notes)
    notes.as_text(path)
    return [compact(content)]


def part_of(given: Any, path: str, notes: Notes) -> list[Part]:
    """Convert one part of any API's message to the parts shown to the model: none, one, or several.

    path: the part's path in the request. Only a document may become several parts.
    """
    if isinstance(given, str):
        notes.understood(path)
        return [given]
    if not isinstance(given, dict):
        notes.as_text(path)
        return [compact(given)]
    kind = given["type"] if isinstance(given.get("type"), str) else None
    if kind is None or kind in TEXTS:
        key = TEXTS.get(kind or "text", "text")
        if isinstance(given.get(key), str):
            note_unknown(given, {"type", key}, path, notes)
            if kind not in OWN_TEXTS.get(notes.api, (kind,)):
                notes.understood(f"{path}.type", f"must be one of {', '.join(OWN_TEXTS[notes.api])}")
            return [given[key]]
        if kind is not None:
            notes.left_out(path)
            return []
    if kind in MEDIA:
        return _media(given, MEDIA[kind], path, notes)
    if kind == "compaction" and given.get("content"):
        return parts_of(given["content"], path, notes)
    shown = "" if kind in LEFT_OUT else readable(given)
    if not shown:
        notes.left_out(path)
        return []
    notes.as_text(path)
    name = given.get("name") if kind in ("server_tool_use", "mcp_tool_use") else kind
    return [f"[{name} {shown}]" if isinstance(name, str) else shown]


def note_unknown(given: Json, known: Iterable[str], path: str, notes: Notes) -> None:
    """Note the keys of an object that are not known, unless their values say nothing. path: the object's."""
    for key in sorted(given.keys() - set(known) - notes.silent)[:MAX_NOTES]:
        says_nothing = given[key] is None or (key not in INSIDE and given[key] in (False, []))
        if not says_nothing:
            notes.left_out(f"{path}.{key}", is_peers=key in INSIDE)


def _media(given: Json, kind: str, path: str, notes: Notes) -> list[Part]:
    """Return an image, a placeholder, or the text of a document that is text."""
    if kind == "image":
        return [image_of(given, path)]
    notes.as_text(path)
    holders = (given.get(key) for key in ("source", "file", "input_audio"))
    inner = next((one for one in holders if isinstance(one, dict)), {})
    names = (given.get("title"), given.get("filename"), inner.get("filename"))
    name = next((one[:100] for one in names if isinstance(one, str)), "")
    if inner.get("type") == "text" and isinstance(inner.get("data"), str):
        return [f"[{kind}{name and ' ' + name}]\n{inner['data']}"]
    if inner.get("type") == "content":
        return parts_of(inner.get("content"), path, notes)
    return [Media(kind, name)]


def readable(given: Any) -> str:
    """Return an object as JSON without the keys that no model can read; "" if nothing is left."""
    kept = cleaned(given)
    return "" if kept in _NOTHING else compact(kept)[:MAX_SHOWN]


def cleaned(given: Any, depth: int = 0) -> Any:
    """Return a value without unreadable keys, empty values, and values nested deeper than MAX_DEPTH.

    depth: the number of objects and arrays around the value.
    """
    if depth > MAX_DEPTH:
        return None
    if isinstance(given, dict):
        kept = {key: cleaned(one, depth + 1) for key, one in given.items() if key not in UNREADABLE}
        return {key: one for key, one in kept.items() if one not in _NOTHING}
    if isinstance(given, list):
        return [one for one in (cleaned(one, depth + 1) for one in given) if one not in _NOTHING]
    return given


def compact(value: Any) -> str:
    """Return a value as JSON."""
    return json.dumps(value, ensure_ascii=False)


def as_string(value: Any) -> str:
    """Return a string as it is, null as "", and any other value as JSON."""
    return value if isinstance(value, str) else "" if value is None else compact(value)


def arguments_of(given: Any, path: str, notes: Notes) -> Json:
    """Return the arguments of a call as an object, whether they were sent as an object or as JSON text.

    Of JSON that was cut off, return the members that arrived. path: the arguments' path in the request.
    """
    if isinstance(given, str):
        if not given.strip():
            return {}
        value = _parsed(given)
        if isinstance(value, dict):
            return value
        notes.as_text(path)
        value = _parsed(given, allow_partial="trailing-strings")
        if isinstance(value, dict):
            return value
        return {"input": given}
    if notes.api != "ollama" or not isinstance(given, dict):
        notes.understood(path)
    return given if isinstance(given, dict) else {} if given is None else {"input": given}


def _parsed(text: str, **options: Any) -> Any:
    """Return the value of JSON; None if it is none, or has too many values, which the body's check passed."""
    try:
        check_values(text.encode())
        return from_json(text, allow_inf_nan=False, **options)
    except (ValueError, BadRequestError):
        return None
