"""Settle what a conversation leaves open: calls and results that do not match; whether it has an answer."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from reprise.server.conversation.model import Media, Message
from reprise.server.errors import BadRequestError, bad_field
from reprise.server.validation.notes import Notes

MAX_MESSAGES = 4096
MAX_PARTS = 8192
"""Maximum parts of a whole conversation, those of results included: translating each takes time."""
SEEING = (
    ", or serve a model that sees, such as mlx-community/Qwen3-VL-4B-Instruct-4bit (docs/images.md lists "
    "others, and GET /v1/models says of each that is served whether it sees)"
)
"""What a client can do whose model does not see."""


def check_size(given: Any, path: str, *, most: int = MAX_MESSAGES, what: str = "entries") -> list[Any]:
    """Return the array of a request's messages or items, of which a lone one may come without an array.

    most: the largest number of entries. what: the word for entries in the error message.
    Raises BadRequestError if it is no array, or has too many entries, or its entries too many parts in all.
    """
    if isinstance(given, dict):
        given = [given]
    if not isinstance(given, list):
        kinds = {str: "a string", bool: "a boolean", int: "an integer", float: "a decimal number"}
        shown = kinds.get(type(given), "null")
        raise bad_field(path, f"must be an array, not {shown}", "invalid_type")
    if len(given) > most:
        raise _too_many(path, len(given), most, what)
    parts = list(_contents(given))
    num_parts = len(parts) + sum(1 for _ in _contents(parts))
    if num_parts > MAX_PARTS:
        raise _too_many(path, num_parts, MAX_PARTS, "parts in all")
    return given


def _too_many(path: str, num: int, most: int, what: str) -> BadRequestError:
    return bad_field(path, f"has {num} {what}; at most {most} are allowed")


def _contents(given: Iterable[Any]) -> Iterator[Any]:
    """Yield the parts of messages, or of results."""
    for one in given:
        for key in ("content", "output", "summary", "tool_calls"):
            if isinstance(one, dict) and isinstance(one.get(key), list):
                yield from one[key]


def settle(messages: Iterable[Message], notes: Notes) -> tuple[Message, ...]:
    """Return the messages with an id for every call, and for every result the id of the call that it answers.

    A result that answers no call of an earlier message becomes text of the user.
    """
    made: list[Message] = []
    known: set[str] = set()
    unanswered: dict[str, None] = {}
    numbers = count(1)
    for given in messages:
        message = given
        if message.calls:
            calls = tuple(c if c.id else replace(c, id=f"call_{next(numbers)}") for c in message.calls)
            message = replace(message, calls=calls)
            known.update(call.id for call in calls)
            unanswered.update((call.id, None) for call in calls)
        elif message.role == "tool":
            if not message.call_id and unanswered:
                notes.understood(message.at, "names no call")
                message = replace(message, call_id=next(iter(unanswered)))
            if message.call_id not in known:
                notes.understood(message.at, "answers no call of an earlier message")
                message = _as_users(message)
            else:
                unanswered.pop(message.call_id, None)
        made.append(message)
    return tuple(made)


def _as_users(result: Message) -> Message:
    if all(isinstance(part, str) for part in result.parts):
        return Message("user", (f"<tool_response>\n{result.text}\n</tool_response>",), at=result.at)
    return Message("user", ("<tool_response>", *result.parts, "</tool_response>"), joint="\n", at=result.at)


def check_answerable(messages: Sequence[Message], *, sees: bool = True) -> None:
    """Refuse a newest turn that has media and nothing the model can read or see. Raises BadRequestError.

    sees: whether the model sees images. True while that is not known; then call this again once it is.
    """
    newest = [one for one in messages[newest_start(messages) :] if one.role != "system"]
    media = [part for one in newest for part in one.parts if isinstance(part, Media)]
    has_text = any(isinstance(part, str) and part.strip() for one in newest for part in one.parts)
    is_seen = sees and any(part.kind == "image" for part in media)
    if media and not has_text and not is_seen and all(one.role != "tool" for one in newest):
        at = newest[-1].at
        raise BadRequestError(
            f"'{at}' has nothing but media ({media[0].kind}), and this model reads text. Send some with it"
            f"{SEEING if media[0].kind == 'image' else ''}.",
            param=at,
            code="unsupported_content_part",
        )


def newest_start(messages: Sequence[Message]) -> int:
    """Return the index of the first message after the last answer."""
    return 1 + max((i for i, one in enumerate(messages) if one.role == "assistant"), default=-1)
