"""Agents' sessions as they lie on disk, read as chats: each answer is a turn, with all that was said before.

Claude Code   ~/.claude/projects/*/*.jsonl: a line for each block of a message
Codex         ~/.codex/sessions/**/rollout-*.jsonl: a line for each item of the Responses API
OpenCode      what `opencode export` writes: one object, with parts of messages
Reprise       what `reprise serve --record` writes
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from reprise.bench.workloads.chats import Chat, Message, Turn, read_prompts
from reprise.server.anthropic_api.schemas import from_messages
from reprise.server.requests.fields import Notes

Json = dict[str, Any]
Spoken = list[list[Message]]
"""Messages in Anthropic's format, in parts: the model no longer gets what was said before a part."""


def read_sessions(path: Path) -> list[Chat]:
    """Read a session, or all in a folder, whose name is then their workload; other files there are left out.

    Raises OSError if a file cannot be read, ValueError if there is nothing to replay.
    """
    if not path.is_dir():
        return read_session(path)
    chats: list[Chat] = []
    for file in sorted(file for file in path.rglob("*.json*") if file.suffix in (".json", ".jsonl")):
        with suppress(ValueError):
            chats += read_session(file, path.resolve().name)
    if not chats:
        raise ValueError(f"{path}: the folder contains no sessions")
    return chats


def read_session(path: Path, workload: str = "") -> list[Chat]:
    """Read a session in one of the formats above.

    System prompt and tools are not written there, so the tools are those that were called, with the arguments
    that they got. Sub-agents have chats of their own. workload: of the chats, else the file's name.
    Raises OSError if the file cannot be read, ValueError if there is nothing to replay.
    """
    lines = list(_objects(path))
    is_codex = any(line.get("type") in CODEX_LINES for line in lines)
    is_export = any("info" in line and isinstance(line.get("messages"), list) for line in lines)
    read = _of_codex if is_codex else _of_opencode if is_export else _of_claude_code
    spoken = read(lines)
    chats = [Chat(workload or path.stem, tuple(_turns(part))) for part in spoken]
    return [chat for chat in chats if chat.turns] or read_prompts(path, for_replay=True)


def _objects(path: Path) -> Iterator[Json]:
    """Yield a file's JSON objects, of lines or the only one; other content is left to the next reader."""
    content = path.read_bytes()
    for text in content.split(b"\n"):
        with suppress(ValueError, RecursionError):
            line = json.loads(text)
            if isinstance(line, dict):
                yield line
    with suppress(ValueError, RecursionError):
        whole = json.loads(content)
        if isinstance(whole, dict) and b"\n" in content.strip():
            yield whole


def _of_claude_code(lines: Iterable[Json]) -> Spoken:
    spoken: dict[str, Spoken] = {}
    for line in lines:
        if line.get("type") not in ("user", "assistant") or not isinstance(line.get("message"), dict):
            continue
        # The client's own words, such as an API's error.
        if line.get("isApiErrorMessage") or line["message"].get("model") == "<synthetic>":
            continue
        who = " ".join(str(line.get(key)) for key in ("sessionId", "agentId", "isSidechain"))
        parts = spoken.setdefault(who, [[]])
        if line.get("isCompactSummary"):
            parts.append([])
        parts[-1].append({key: line["message"].get(key) for key in ("role", "content")})
    return [part for parts in spoken.values() for part in parts]


CODEX_LINES = "response_item", "session_meta", "message", "reasoning", "function_call"
"""Types of lines of a rollout. In old ones (one of 2025-09-10 was read) lines are the items themselves."""


def _of_codex(lines: Iterable[Json]) -> Spoken:
    parts: Spoken = [[]]
    for line in lines:
        item = line.get("payload", line)
        if line.get("type") == "compacted":
            parts.append([])
        if (line.get("type") == "response_item" or item is line) and isinstance(item, dict):
            parts[-1] += _of_item(item)
    return parts


def _of_item(item: Json) -> Iterator[Message]:
    """Yield an item of the Responses API as a message."""
    kind, call_id = item.get("type"), str(item.get("call_id") or item.get("id"))
    if kind == "message":
        role = item.get("role")
        role = role if role in ("user", "assistant") else "system"
        yield _message(str(role), [{"type": "text", "text": text} for text in _texts(item.get("content"))])
    elif kind == "reasoning":
        for text in _texts(item.get("content")) or _texts(item.get("summary")):
            yield _message("assistant", [{"type": "thinking", "thinking": text}])
    elif kind in ("function_call", "custom_tool_call", "local_shell_call"):
        given: Any = item.get("arguments", item.get("action", {"input": item.get("input")}))
        with suppress(ValueError, TypeError):
            given = json.loads(given)
        call = {"name": item.get("name") or "shell", "input": given if isinstance(given, dict) else {}}
        yield _message("assistant", [{"type": "tool_use", "id": call_id, **call}])
    elif str(kind).endswith("_call_output"):
        output = item.get("output")
        text = output if isinstance(output, str) else "\n".join(_texts(output)) or json.dumps(output)
        yield _message("user", [{"type": "tool_result", "tool_use_id": call_id, "content": text}])


def _texts(content: Any) -> list[str]:
    return [str(part["text"]) for part in _dicts(content) if part.get("text")]


def _dicts(value: Any) -> list[Json]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _of_opencode(lines: Iterable[Json]) -> Spoken:
    spoken: list[Message] = []
    export = next(line for line in lines if isinstance(line.get("messages"), list))
    for message in _dicts(export["messages"]):
        role = (message.get("info") or {}).get("role", "user")
        results: list[Message] = []
        for part in _dicts(message.get("parts")):
            kind, call_id = part.get("type"), str(part.get("callID"))
            if kind != "tool":
                # Calls that follow each other were one answer.
                spoken += results
                results = []
            if kind == "text":
                spoken.append(_message(role, [{"type": "text", "text": part.get("text") or ""}]))
            elif kind == "reasoning":
                spoken.append(_message(role, [{"type": "thinking", "thinking": part.get("text") or ""}]))
            elif kind == "tool":
                state = part.get("state") or {}
                call = {"name": part.get("tool"), "input": state.get("input") or {}}
                result = str(state.get("output") or state.get("error") or "")
                spoken.append(_message("assistant", [{"type": "tool_use", "id": call_id, **call}]))
                results.append(
                    _message("user", [{"type": "tool_result", "tool_use_id": call_id, "content": result}])
                )
        spoken += results
    return [spoken]


def _message(role: str, content: list[Json]) -> Message:
    return {"role": role, "content": content}


def _turns(spoken: list[Message]) -> Iterator[Turn]:
    """Yield a turn for each answer. spoken: messages in Anthropic's format."""
    messages = [one.for_template() for one in from_messages(spoken, "messages", Notes())]
    tools = tuple(_tools_of(messages))
    for at, message in enumerate(messages):
        if at and message["role"] == "assistant":
            yield Turn(tuple(messages[:at]), None, tools=tools, answer=message)


_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def _tools_of(messages: Iterable[Message]) -> Iterator[Json]:
    """Yield the tools that were called. An argument that every call had is required."""
    calls = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    for name, number in sorted(Counter(call["name"] for call in calls).items()):
        given = [pair for call in calls if call["name"] == name for pair in call["arguments"].items()]
        counts = Counter(key for key, _ in given)
        properties = {key: {"type": _TYPES.get(type(value), "string")} for key, value in given}
        required = [key for key in properties if counts[key] == number]
        parameters = {"type": "object", "properties": properties, "required": required}
        yield {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


def kind_of(turn: Turn) -> str:
    """Return what an answer is: the name of the first tool that it calls, or "text"."""
    calls = (turn.answer or {}).get("tool_calls") or [{"function": {"name": "text"}}]
    return str(calls[0]["function"]["name"])
