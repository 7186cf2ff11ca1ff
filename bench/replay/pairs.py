"""Known answers to replay: of chats, and of the commits of a repository."""

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Any

from reprise.bench.experiment import ArgumentsError
from reprise.bench.replay.sessions import kind_of
from reprise.bench.workloads.agents import Change
from reprise.bench.workloads.chats import Chat, render_pair, views_of
from reprise.engine.interface.request import View
from reprise.engine.text.tokenizer import Tokenizer
from reprise.server.prompt.views import ViewMaker

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
    views: a server's views of the prompt's messages. kind: see kind_of() in sessions.py; empty elsewhere.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    workload: str = ""
    chat: str = ""
    turn: int | None = None
    views: tuple[View, ...] = ()
    kind: str = ""


def token_pairs(tokenizer: Tokenizer, chats: Iterable[Chat]) -> Iterator[TokenPair]:
    """Yield the prompt and the right answer of each turn of chats, without turns whose answer is empty."""
    engine: Any = SimpleNamespace(tokenizer=tokenizer)
    maker = ViewMaker(engine, VIEW_BYTES)
    for number, chat in enumerate(chats, 1):
        for place, turn in enumerate(chat.turns, 1):
            prompt, answer = render_pair(tokenizer, turn)
            if answer:
                views, kind = views_of(maker, turn), kind_of(turn) if turn.answer else ""
                yield TokenPair(prompt, answer, chat.workload, f"{number}", place, views, kind)


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
