"""`reprise bench commits`: make pairs to replay from a git history.

Write pairs for `reprise bench replay --pairs`: a commit message and a file before the commit are the prompt,
the file after it is the answer. The newest pairs are taken, written in the order of their commits. Only text
files that a commit modified are used; merges are left out.
"""

import argparse
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Any

from reprise.bench import options
from reprise.bench.errors import ArgumentsError
from reprise.bench.options import Flag
from reprise.bench.workloads.agents import Change
from reprise.bench.workloads.chats import Chat, Message, render_pair, views_of
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

    chat: the name of the chat that the pair belongs to; empty for a single request. turn: the number of its
    turn in the chat, from 1. is_measured: False if the pair only fills the drafters' tables. messages: the
    prompt's messages, as chat templates expect them; () if the prompt is not a chat. views: the views that a
    server makes of the messages.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    workload: str = ""
    chat: str = ""
    turn: int | None = None
    is_measured: bool = True
    messages: tuple[Message, ...] = ()
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
                shown = tuple(turn.for_template()), views_of(maker, turn)
                pairs.append(TokenPair(prompt, answer, chat.workload, f"{number}", place, True, *shown))
    return pairs


FLAGS = (
    Flag("repository", str, "REPO", None, "A local git repository."),
    Flag("-o --output", options.output_file, "FILE", ..., "File to write."),
    Flag("--suffix", str, "SUFFIX", [], "Only paths with this suffix; may be repeated.", is_repeated=True),
    Flag("--count", options.count, "N", 200, "Maximum pairs."),
    Flag("--per-commit", options.count, "N", 4, "Maximum files of one commit."),
    Flag("--max-bytes", options.count, "N", 32_000, "Maximum size of a file."),
    Flag("--revision", str, "REV", "HEAD", "Newest commit to use."),
)


def run(given: argparse.Namespace) -> int:
    """Read a history, write pairs, and return the exit status."""
    limits = given.count, given.per_commit, given.max_bytes
    changes = read_history(given.repository, *limits, given.suffix, given.revision)
    given.output.write_text("".join(json.dumps(_pair(one)) + "\n" for one in changes), encoding="utf-8")
    print(f"wrote {len(changes)} pairs to {given.output}")
    return 0


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


def _pair(change: Change) -> dict[str, str]:
    request = f"{change.message}\n\nAnswer with the whole file {change.path}."
    prompt, output = f"{request}\n\n```\n{change.before}```\n", f"```\n{change.after}```\n"
    return {"prompt": prompt, "output": output, "workload": "commits", "id": change.id}


def _changes(
    repository: str, commit: str, max_bytes: int, suffixes: str | tuple[str, ...]
) -> Iterator[Change]:
    """Yield the changes of text files of those suffixes and that size by a commit."""
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

    Nothing is fetched, and no program runs that the repository's configuration names.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", repository, "-c", "core.fsmonitor=false", "-c", "protocol.allow=never", *words]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    if done.returncode:
        first = done.stderr.decode(errors="replace").partition("\n")[0]
        raise ArgumentsError(f"git cannot read {repository}: {first}")
    return done.stdout
