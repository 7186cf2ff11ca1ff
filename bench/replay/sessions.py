"""Recorded sessions of agents, as chats to replay: transcripts of Claude Code, or requests and responses."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reprise.bench.workloads.chats import Chat, Message, Turn, read_prompts
from reprise.server.anthropic_api.schemas import from_messages
from reprise.server.requests.fields import Notes


def read_session(path: Path) -> list[Chat]:
    """Read JSON lines that an agent, or a server that it used, has written.

    Lines of Claude Code (~/.claude/projects/*/*.jsonl) have a "type" and a "message" each, but no system
    prompt and no tools; sub-agents have chats of their own. Other files are read as read_prompts() does it.
    Raises OSError if the file cannot be read, ValueError if there is nothing to replay.
    """
    spoken: dict[str, list[list[Message]]] = {}
    for line in _lines(path):
        if line.get("type") not in ("user", "assistant") or not isinstance(line.get("message"), dict):
            continue
        who = " ".join(str(line.get(key)) for key in ("sessionId", "agentId", "isSidechain"))
        parts = spoken.setdefault(who, [[]])
        # What was said before is no longer shown to the model.
        if line.get("isCompactSummary"):
            parts.append([])
        parts[-1].append({key: line["message"].get(key) for key in ("role", "content")})
    chats = [Chat(path.stem, tuple(_turns(part))) for parts in spoken.values() for part in parts]
    return [chat for chat in chats if chat.turns] or read_prompts(path, for_replay=True)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file; what else is in it is the next reader's."""
    for text in path.read_bytes().split(b"\n"):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            yield line


def _turns(spoken: list[Message]) -> Iterator[Turn]:
    """Yield a turn for each answer. spoken: messages as Anthropic's API has them."""
    messages = [one.for_template() for one in from_messages(spoken, "messages", Notes())]
    for at, message in enumerate(messages):
        if at and message["role"] == "assistant":
            yield Turn(tuple(messages[:at]), None, answer=message)
