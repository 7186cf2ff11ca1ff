"""Chats that a user wrote or recorded: JSON lines of chat requests."""

import json
from pathlib import Path

from bench.workloads.chats import Chat, Turn


def read_prompts(path: Path) -> list[Chat]:
    """Read JSON lines, each a chat request: {"messages": [...], "tools": [...]}.

    Raises OSError if the file cannot be read, ValueError that names the line if one is no chat.
    """
    chats = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                chat = json.loads(line)
            except json.JSONDecodeError as fault:
                raise ValueError(f"line {number} is no JSON: {fault}") from None
            if not isinstance(chat, dict) or not isinstance(chat.get("messages"), list):
                raise ValueError(f'line {number} is no chat: an object with a list "messages" is wanted')
            turn = Turn(tuple(chat["messages"]), chat.get("output"), tools=tuple(chat.get("tools") or ()))
            chats.append(Chat(path.stem, (turn,)))
    if not chats:
        raise ValueError("there are no chats in it")
    return chats
