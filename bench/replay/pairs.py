"""Known answers to replay: of chats, of an agent's sessions, and of the commits of a repository."""

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from reprise.bench.experiment import ArgumentsError
from reprise.bench.workloads.agents import Change
from reprise.bench.workloads.chats import Chat, Message, Turn, read_prompts, render_pair, views_of
from reprise.engine.interface.request import View
from reprise.engine.text.tokenizer import Tokenizer
from reprise.server.anthropic_api.schemas import from_messages
from reprise.server.prompt.views import ViewMaker
from reprise.server.requests.fields import Notes

VIEW_BYTES = 1 << 30
"""Views of files that are shown again are not made again."""
MIN_BYTES = 400
"""Smaller files of a history are left out."""

Encode = Callable[[str], Sequence[int]]
"""Returns the token ids of a text, without the special tokens that begin or end a prompt."""


@dataclass(frozen=True, slots=True)
class TokenPair:
    """A prompt and its answer, at least one token each.

    chat: the name of the pair's chat; empty for a single request. turn: its number in the chat, from 1.
        views: a server's views of the prompt's messages.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    workload: str = ""
    chat: str = ""
    turn: int | None = None
    views: tuple[View, ...] = ()


def token_pairs(tokenizer: Tokenizer, chats: Iterable[Chat]) -> list[TokenPair]:
    """Return the prompt and the right answer of each turn of chats, without turns whose answer is empty."""
    pairs: list[TokenPair] = []
    engine: Any = SimpleNamespace(tokenizer=tokenizer)
    maker = ViewMaker(engine, VIEW_BYTES)
    for number, chat in enumerate(chats, 1):
        for place, turn in enumerate(chat.turns, 1):
            prompt, answer = render_pair(tokenizer, turn)
            if answer:
                views = views_of(maker, turn)
                pairs.append(TokenPair(prompt, answer, chat.workload, f"{number}", place, views))
    return pairs


def read_history(
    repository: str,
    count: int = 200,
    per_commit: int = 4,
    max_bytes: int = 32_000,
    suffixes: Sequence[str] = (),
    revision: str = "HEAD",
) -> list[Change]:
    """Return the newest changes of text files, in the order of their commits. Raises ArgumentsError."""
    found: list[Change] = []
    select = "--no-merges", "--min-parents=1", "--end-of-options", f"{revision}^{{commit}}", "--"
    for commit in _git(repository, "rev-list", *select).decode().split():
        changes = _changes(repository, commit, max_bytes, tuple(suffixes) or "")
        found[:0] = islice(changes, min(per_commit, count - len(found)))
    if not found:
        raise ArgumentsError(f"{repository}: no commit modified a text file of that suffix and size")
    return found


def _changes(
    repository: str, commit: str, max_bytes: int, suffixes: str | tuple[str, ...]
) -> Iterator[Change]:
    """Yield a commit's changes of text files with suitable suffixes and sizes."""
    form = "-r", "-z", "--raw", "--no-renames", "--diff-filter=M", "--format=%x20%B"
    changed = _git(repository, "diff-tree", *form, commit, "--")
    message, *changes = changed.decode(errors="replace").split("\0")
    for facts, path in zip(changes[::2], changes[1::2], strict=False):
        mode, _, *objects, _ = facts.split()
        # Links and submodules have other modes.
        if message.strip() and mode.startswith(":100") and path.endswith(suffixes):
            before, after = (_text(repository, name, max_bytes) for name in objects)
            if before and after and before != after:
                yield Change(f"{commit[:12]}:{path}", message.strip(), path, before, after)


def _text(repository: str, blob: str, max_bytes: int) -> str:
    """Return a version of a file; empty if it is not text, or too small or too large."""
    content = _git(repository, "cat-file", "blob", blob)
    with suppress(UnicodeDecodeError):
        if MIN_BYTES <= len(content) <= max_bytes and b"\0" not in content:
            return content.decode()
    return ""


def _git(repository: str, *words: str) -> bytes:
    """Run a plumbing command of git and return its output. Raises ArgumentsError.

    Nothing is fetched, and no program that the repository configures is run.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", repository, "-c", "core.fsmonitor=false", "-c", "protocol.allow=never", *words]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    if done.returncode:
        first = done.stderr.decode(errors="replace").partition("\n")[0]
        raise ArgumentsError(f"git cannot read {repository}: {first}")
    return done.stdout


def read_session(path: Path) -> list[Chat]:
    """Read JSON lines written by an agent or by the server that it used.

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
        # The model no longer gets the earlier messages.
        if line.get("isCompactSummary"):
            parts.append([])
        parts[-1].append({key: line["message"].get(key) for key in ("role", "content")})
    chats = [Chat(path.stem, tuple(_turns(part))) for parts in spoken.values() for part in parts]
    return [chat for chat in chats if chat.turns] or read_prompts(path, for_replay=True)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a file's JSON objects; other content is left to the next reader."""
    for text in path.read_bytes().split(b"\n"):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            yield line


def _turns(spoken: list[Message]) -> Iterator[Turn]:
    """Yield a turn for each answer. spoken: messages in Anthropic's format."""
    messages = [one.for_template() for one in from_messages(spoken, "messages", Notes())]
    for at, message in enumerate(messages):
        if at and message["role"] == "assistant":
            yield Turn(tuple(messages[:at]), None, answer=message)
