"""The normalized form of messages and calls, and the translation of chats into it."""

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal

from reprise.server.errors import BadRequestError, bad_field
from reprise.server.requests.fields import INSIDE, JSON_TYPES, MAX_NOTES, Notes, parse_finite
from reprise.server.requests.json_body import check_values
from reprise.server.requests.media import Media, document_of, image_of

Json = dict[str, Any]
Role = Literal["system", "user", "assistant", "tool"]
Part = str | Media


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call by the assistant. id: may be "" until settle() gives the call one."""

    id: str
    name: str
    arguments: Json

    def for_template(self) -> Json:
        """Return the call as chat templates expect it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Message:
    """One normalized message of a conversation.

    call_id: in a tool's message, the id of the call that it answers. joint: the text between two parts.
    at: the message's path in the request, for notes and errors.
    """

    role: Role
    parts: tuple[Part, ...] = ()
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    name: str = ""
    joint: str = ""
    at: str = field(default="", compare=False)

    @property
    def text(self) -> str:
        """The text for the model."""
        return self.joint.join(map(str, self.parts))

    @property
    def can_continue(self) -> bool:
        """Whether an answer may continue the message: the assistant's own text, not a placeholder."""
        ends_with_text = bool(self.parts) and isinstance(self.parts[-1], str)
        return self.role == "assistant" and not self.calls and ends_with_text and bool(self.text.strip())

    def for_template(self) -> Json:
        """Return the message as chat templates expect it."""
        shown: Json = {"role": self.role, "content": self.text}
        named = {"name": self.name, "reasoning_content": self.reasoning}
        shown |= {name: value for name, value in named.items() if value}
        if self.role == "tool":
            shown["tool_call_id"] = self.call_id
        if self.calls:
            shown["tool_calls"] = [call.for_template() for call in self.calls]
        return shown


def joined(group: Sequence[Message]) -> Message:
    """Return several messages of the same role as one."""
    if len(group) == 1:
        return group[0]
    return replace(
        group[0],
        parts=tuple(part for one in group for part in one.parts),
        reasoning="".join(one.reasoning for one in group),
        calls=tuple(call for one in group for call in one.calls),
    )


REASONING_PREFIX = "reprise:"
"""What encode_reasoning() puts before the base64."""


def encode_reasoning(reasoning: str) -> str:
    """Encode reasoning, or a summary, as text that clients send back as it is. It is not encrypted."""
    return REASONING_PREFIX + base64.b64encode(reasoning.encode()).decode()


def decode_reasoning(content: object) -> str | None:
    """Decode what encode_reasoning() made. Return None for anything else."""
    if not isinstance(content, str) or not content.startswith(REASONING_PREFIX):
        return None
    try:
        return base64.b64decode(content.removeprefix(REASONING_PREFIX), validate=True).decode()
    except ValueError:
        return None


MAX_MESSAGES = 4096
MAX_PARTS = 8192
"""Maximum parts of a whole conversation, those of results included: translating each takes time."""
SEEING = (
    ", or serve a model that sees, such as mlx-community/Qwen3-VL-4B-Instruct-4bit (docs/images.md lists "
    "others, and GET /v1/models says of each that is served whether it sees)"
)
"""What a client can do whose model does not see."""


def check_size(given: Any, path: str, *, most: int = MAX_MESSAGES, what: str = "entries") -> list[Any]:
    """Return a request's array of messages or items; a single one may come without an array.

    Raises BadRequestError for more than `most` entries, named `what` in the error, or too many parts in all.
    """
    if isinstance(given, dict):
        given = [given]
    if not isinstance(given, list):
        shown = JSON_TYPES.get(type(given), "null")
        raise bad_field(path, f"must be an array, not {shown}", "invalid_type")
    num = len(given)
    if num <= most:
        parts = list(_contents(given))
        num, most, what = len(parts) + sum(1 for _ in _contents(parts)), MAX_PARTS, "parts in all"
    if num > most:
        raise bad_field(path, f"has {num} {what}; at most {most} are allowed")
    return given


def _contents(given: Iterable[Any]) -> Iterator[Any]:
    """Yield the parts of messages, or of results."""
    for one in given:
        for key in ("content", "output", "summary", "tool_calls"):
            if isinstance(one, dict) and isinstance(one.get(key), list):
                yield from one[key]


def settle(messages: Iterable[Message], notes: Notes) -> tuple[Message, ...]:
    """Give each call an id of its own, and its result the same; some clients number those of each turn anew.

    A result without a call becomes a user message.
    """
    made: list[Message] = []
    # The id that a call was sent with -> those that its latest calls have now, without the answered ones.
    latest: dict[str, list[str]] = {}
    known: set[str] = set()
    unanswered: dict[str, None] = {}
    numbers = count(1)
    for given in messages:
        message = given
        if message.calls:
            calls, named = list[Call](), dict[str, list[str]]()
            for call in message.calls:
                own = call.id
                while not own or own in known:
                    own = f"call_{next(numbers)}"
                known.add(own)
                if call.id:
                    named.setdefault(call.id, []).append(own)
                calls.append(replace(call, id=own))
            message = replace(message, calls=tuple(calls))
            latest |= named
            unanswered.update((call.id, None) for call in calls)
        elif message.role == "tool":
            if not message.call_id and unanswered:
                notes.understood(message.at, "names no call")
                message = replace(message, call_id=next(iter(unanswered)))
            elif owns := latest.get(message.call_id):
                message = replace(message, call_id=owns.pop(0) if len(owns) > 1 else owns[0])
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
    """Refuse a newest turn with only media. sees: whether the model takes images; True if unknown."""
    newest = [one for one in messages[newest_start(messages) :] if one.role != "system"]
    media = [part for one in newest for part in one.parts if isinstance(part, Media)]
    has_text = any(isinstance(part, str) and part.strip() for one in newest for part in one.parts)
    is_seen = any(
        (part.kind == "image" and sees) or (part.kind == "document" and part.data) for part in media
    )
    if media and not has_text and not is_seen and all(one.role != "tool" for one in newest):
        at = newest[-1].at
        more = SEEING if media[0].kind == "image" else ""
        message = f"'{at}' has nothing but media ({media[0].kind}), and {media[0].unread}."
        message += f" Send some with it{more}."
        raise BadRequestError(message, param=at, code="unsupported_content_part")


def newest_start(messages: Sequence[Message]) -> int:
    """Return the index of the first message after the last answer."""
    return 1 + max((i for i, one in enumerate(messages) if one.role == "assistant"), default=-1)


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
"""Parts shown as a placeholder; documents as their text, and images to a model that sees."""
_LEFT_OUT = """
    redacted_thinking container_upload fallback tool_addition tool_removal mcp_tool_listing mcp_list_tools
    mcp_approval_request mcp_approval_response compaction_trigger configuration_update ghost_snapshot
    item_reference
"""
LEFT_OUT = frozenset(_LEFT_OUT.split())
"""Parts and items that hold nothing that a model could read."""
_UNREADABLE = """
    encrypted_content encrypted_index encrypted_stdout signature fingerprint data file_data image_url b64_json
    result cache_control citations annotations logprobs id call_id tool_use_id status type caller container_id
    file_id pending_safety_checks
"""
UNREADABLE = frozenset(_UNREADABLE.split())
"""Keys that are left out of all other parts and items, which are shown as JSON: `[kind {...}]`."""
MAX_SHOWN = 100_000
"""Maximum characters of a part that is shown as JSON."""
MAX_DEPTH = 20
_NOTHING: tuple[Any, ...] = (None, {}, [], "")


def parts_of(content: Any, path: str, notes: Notes) -> list[Part]:
    """Convert any content of a message or result to parts for the model."""
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
    """Convert one part of any API's message to none, one or several parts for the model."""
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
    """Note an object's unknown keys, unless their values are empty."""
    for key in sorted(given.keys() - set(known) - notes.silent)[:MAX_NOTES]:
        says_nothing = given[key] is None or (key not in INSIDE and given[key] in (False, []))
        if not says_nothing:
            notes.left_out(f"{path}.{key}", is_peers=key in INSIDE)


def _media(given: Json, kind: str, path: str, notes: Notes) -> list[Part]:
    """Return an image, a placeholder, or the text of a document that is text."""
    if kind == "image":
        return [image_of(given, path)]
    holders = (given.get(key) for key in ("source", "file", "input_audio"))
    inner = next((one for one in holders if isinstance(one, dict)), {})
    names = (given.get("title"), given.get("filename"), inner.get("filename"))
    name = next((one[:100] for one in names if isinstance(one, str)), "")
    media = document_of(given, name, path) if kind == "document" else Media(kind, name)
    if media.data:
        return [media]
    notes.as_text(path)
    if inner.get("type") == "text" and isinstance(inner.get("data"), str):
        # What follows stands apart, as APIs join parts without a gap.
        return [f"[{kind}{name and ' ' + name}]\n{inner['data']}\n\n"]
    if inner.get("type") == "content":
        return parts_of(inner.get("content"), path, notes)
    return [media]


def readable(given: Any) -> str:
    """Return an object as JSON without unreadable keys; "" if nothing is left."""
    kept = cleaned(given)
    return "" if kept in _NOTHING else compact(kept)[:MAX_SHOWN]


def cleaned(given: Any, depth: int = 0) -> Any:
    """Return a value without unreadable keys, empty values, and values nested deeper than MAX_DEPTH."""
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
    """Return a call's arguments as an object; they may be JSON text, even cut off."""
    if isinstance(given, str):
        if not given.strip():
            return {}
        value = _parsed(given)
        if not isinstance(value, dict):
            notes.as_text(path)
            value = _parsed(given, allow_partial="trailing-strings")
        return value if isinstance(value, dict) else {"input": given}
    if notes.api != "ollama" or not isinstance(given, dict):
        notes.understood(path)
    return given if isinstance(given, dict) else {} if given is None else {"input": given}


def _parsed(text: str, **options: Any) -> Any:
    """Parse JSON within a string, which the body's check did not see; None if invalid or too large."""
    try:
        check_values(text.encode())
        return parse_finite(text, **options)
    except (ValueError, BadRequestError):
        return None


ROLES: dict[Any, Role] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "model", "ai"), "assistant"),
    **dict.fromkeys(("tool", "function"), "tool"),
}
"""The roles that are known. Any other is shown as the user's."""
OF_API = ("system", "developer", "user", "assistant", "tool")
ASSISTANT_ONLY = ("refusal", "reasoning_content", "reasoning", "tool_calls", "function_call")
_KNOWN = ("role", "content", "name", "tool_call_id", *ASSISTANT_ONLY)


def from_chats(messages: Iterable[Any], path: str, notes: Notes) -> list[Message]:
    """Normalize the JSON messages of a chat. path: of their array."""
    made = []
    for index, given in enumerate(messages):
        check_message(given, f"{path}[{index}]")
        made.append(chat_message(given, f"{path}[{index}]", notes))
    return made


def check_message(given: Any, at: str) -> None:
    """Refuse anything but a message or a message's text. Raises BadRequestError."""
    if isinstance(given, str):
        return
    if not isinstance(given, dict):
        raise bad_field(at, "must be an object with a role and content", "invalid_type")
    if all(given.get(key) is None for key in _KNOWN):
        raise bad_field(at, "has neither a role nor content; send both", "missing_required_parameter")
    if not isinstance(given.get("role"), str | None):
        raise bad_field(f"{at}.role", "must be a string", "invalid_type")


def chat_message(given: Any, at: str, notes: Notes) -> Message:
    """Translate one JSON message of a chat; any other value becomes a user's message."""
    if not isinstance(given, dict):
        notes.as_text(at)
        return Message("user", tuple(parts_of(given, at, notes)), at=at)
    known = given.get("role") if isinstance(given.get("role"), str) else None
    role = ROLES.get(known, "user")
    if known not in OF_API:
        notes.understood(f"{at}.role", "must be 'system', 'developer', 'user', 'assistant' or 'tool'")
    note_unknown(given, _KNOWN, at, notes)
    name = given["name"] if isinstance(given.get("name"), str) else ""
    if role == "assistant":
        return _assistant_message(given, name, at, notes)
    for key in ASSISTANT_ONLY:
        if given.get(key) is not None:
            notes.left_out(f"{at}.{key}")
    if given.get("content") is None:
        notes.understood(f"{at}.content", "is missing")
    parts = tuple(parts_of(given.get("content"), f"{at}.content", notes))
    if role == "tool":
        return Message(role, parts, call_id=as_string(given.get("tool_call_id")) or name, at=at)
    if given.get("tool_call_id") is not None:
        notes.left_out(f"{at}.tool_call_id")
    return Message(role, parts, name=name, at=at)


def _assistant_message(given: Json, name: str, at: str, notes: Notes) -> Message:
    thought, content = apart(given.get("content"))
    if thought is not None:
        notes.understood(f"{at}.content")
    if content is None and not any(given.get(key) for key in ("tool_calls", "refusal", "function_call")):
        notes.understood(f"{at}.content", "is missing")
    parts = parts_of(given.get("refusal") if content is None else content, f"{at}.content", notes)
    reasonings = (given.get("reasoning_content"), given.get("reasoning"), thought)
    reasoning = next((one for one in reasonings if isinstance(one, str) and one), "")
    return Message("assistant", tuple(parts), reasoning, _calls(given, at, notes), name=name, at=at)


def apart(content: Any) -> tuple[str | None, Any]:
    """Split an assistant's content into reasoning (None without thinking parts) and the rest."""
    parts = content if isinstance(content, list) else []
    thoughts = [as_string(part["thinking"]) for part in parts if _is_thinking(part)]
    if not thoughts:
        return None, content
    return "".join(thoughts), [part for part in parts if not _is_thinking(part)]


def _is_thinking(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "thinking" and "thinking" in part


def _calls(given: Json, at: str, notes: Notes) -> tuple[Call, ...]:
    calls = given.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        notes.left_out(f"{at}.tool_calls")
    found = enumerate(calls if isinstance(calls, list) else ())
    made = [_call(one, f"{at}.tool_calls[{index}]", notes) for index, one in found]
    if isinstance(old := given.get("function_call"), dict):
        notes.understood(f"{at}.function_call")
        made.append(_call({"id": old.get("name"), "function": old}, f"{at}.function_call", notes))
    return tuple(call for call in made if call is not None)


def _call(given: Any, at: str, notes: Notes) -> Call | None:
    keys = ("function", "custom") if isinstance(given, dict) else ()
    key = next((key for key in keys if isinstance(given.get(key), dict)), None)
    if key is None:
        notes.left_out(at)
        return None
    note_unknown(given, ("id", "type", key), at, notes)
    inner = given[key]
    note_unknown(inner, ("name", "arguments", "input"), f"{at}.{key}", notes)
    if not isinstance(given.get("id"), str):
        notes.understood(f"{at}.id", "is missing")
    if "input" in inner:
        if not isinstance(inner["input"], str):
            notes.understood(f"{at}.{key}.input", "must be a string")
        arguments: Json = {"input": as_string(inner["input"])}
    else:
        arguments = arguments_of(inner.get("arguments"), f"{at}.{key}.arguments", notes)
    return Call(as_string(given.get("id")), named(inner, f"{at}.{key}", notes), arguments)


def named(given: Json, at: str, notes: Notes) -> str:
    """Return the tool's name in a call, or "unnamed"."""
    name = given.get("name")
    if not isinstance(name, str) or not name:
        notes.understood(f"{at}.name", "is missing")
        return "unnamed"
    return name
