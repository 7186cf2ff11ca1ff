"""`reprise bench commits`: make pairs to replay from a git history.

Write pairs for `reprise bench replay --pairs`: a commit message and a file before the commit are the prompt,
the file after it is the answer. The newest pairs are taken, written in the order of their commits. Only text
files that a commit modified are used; merges are left out. Each line of a file of pairs is a JSON object:

    {"prompt": "Rename ...", "output": "def ...", "workload": "edits", "chat": "7", "turn": 1, "id": "..."}

Prompt and output are text or token ids. The other fields are optional, and unknown fields are ignored.
The pairs of one chat are in the order of its turns.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

from pydantic import Field, StrictInt, StrictStr, TypeAdapter, ValidationError

from bench import options
from bench.errors import ArgumentsError, reason
from bench.options import Flag

MIN_BYTES = 400
"""Smaller files of a history are left out."""

Encode = Callable[[str], Sequence[int]]
"""Returns the token ids of a text, without the special tokens that begin or end a prompt."""

# Rules keep a text of tokens as a string of as many characters.
TokenId = Annotated[StrictInt, Field(ge=0, le=sys.maxunicode)]
Text = StrictStr | tuple[TokenId, ...]
Name = Annotated[str, Field(coerce_numbers_to_str=True)]


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt and its answer, each as text or as token ids.

    workload: the kind of request, if known. chat: the chat that it belongs to; empty for a single request.
    turn: its number in the chat, from 1. id: names the request to people.
    """

    prompt: Annotated[Text, Field(min_length=1)]
    output: Text
    workload: Name = ""
    chat: Name = ""
    turn: StrictInt | None = None
    id: Name = ""


@dataclass(frozen=True, slots=True)
class TokenPair:
    """A pair as token ids, at least one each. is_measured: False if it only fills the drafters' tables."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    workload: str = ""
    chat: str = ""
    turn: int | None = None
    is_measured: bool = True


_ADAPTER = TypeAdapter(Pair)


def read_pairs(path: Path) -> list[Pair]:
    """Return all pairs of a file, in order; empty lines are skipped. Raises OSError, ArgumentsError."""
    pairs = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        try:
            pairs += [_ADAPTER.validate_json(line)] if line.strip() else []
        except ValidationError as fault:
            raise ArgumentsError(f"{path} line {number}: {reason(fault)}") from None
    return pairs


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Write pairs to a file, replacing its content. Raises OSError."""
    lines = [json.dumps(_ADAPTER.dump_python(pair, exclude_defaults=True)) + "\n" for pair in pairs]
    path.write_text("".join(lines), encoding="utf-8")


def tokenized(pairs: Iterable[Pair], encode: Encode) -> list[TokenPair]:
    """Return the pairs as token ids, without those whose prompt or answer is empty."""

    def ids(text: Text) -> tuple[int, ...]:
        return tuple(encode(text)) if isinstance(text, str) else text

    found = [TokenPair(ids(one.prompt), ids(one.output), one.workload, one.chat, one.turn) for one in pairs]
    return [pair for pair in found if pair.prompt and pair.answer]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench commits` to the parser."""
    parser.add_argument("repository", metavar="REPO", help="A local git repository.")
    parser.add_argument("-o", "--output", type=options.output_file, required=True, metavar="FILE")
    parser.add_argument("--suffix", action="append", default=[],
                        help="Only paths with this suffix; may be repeated.")  # fmt: skip
    options.declare(
        parser,
        Flag("--count", options.count, "N", 200, "Maximum pairs."),
        Flag("--per-commit", options.count, "N", 4, "Maximum files of one commit."),
        Flag("--max-bytes", options.count, "N", 32_000, "Maximum size of a file."),
        Flag("--revision", str, "REV", "HEAD", "Newest commit to use."),
    )


def run(given: argparse.Namespace) -> int:
    """Read a history, write pairs, and return the exit status."""
    pairs: list[Pair] = []
    select = "--no-merges", "--min-parents=1", "--end-of-options", f"{given.revision}^{{commit}}", "--"
    for commit in _git(given.repository, "rev-list", *select).decode().split():
        found = islice(_pairs_of(commit, given), min(given.per_commit, given.count - len(pairs)))
        pairs = [*found, *pairs]
        if len(pairs) == given.count:
            break
    if not pairs:
        raise ArgumentsError(f"{given.repository}: no commit modified a text file of that suffix and size")
    write_pairs(given.output, pairs)
    print(f"wrote {len(pairs)} pairs to {given.output}")
    return 0


def _pairs_of(commit: str, given: argparse.Namespace) -> Iterator[Pair]:
    """Yield a pair for each text file of that suffix and size that a commit modified."""
    form = "-r", "-z", "--raw", "--no-renames", "--diff-filter=M", "--format=%x20%B"
    changed = _git(given.repository, "diff-tree", *form, commit, "--")
    message, *changes = changed.decode(errors="replace").split("\0")
    for facts, path in zip(changes[::2], changes[1::2], strict=False):
        mode, _, *objects, _ = facts.split()
        # Links and submodules have other modes.
        if message.strip() and mode.startswith(":100") and path.endswith(tuple(given.suffix) or ""):
            before, after = (_git(given.repository, "cat-file", "blob", name) for name in objects)
            if before != after and _is_text(before, given.max_bytes) and _is_text(after, given.max_bytes):
                asked = f"{message.strip()}\n\nAnswer with the whole file {path}."
                prompt, answer = f"{asked}\n\n```\n{before.decode()}```\n", f"```\n{after.decode()}```\n"
                yield Pair(prompt, answer, "commits", id=f"{commit[:12]}:{path}")


def _is_text(content: bytes, max_bytes: int) -> bool:
    """Return whether a file is text and neither too small nor too large."""
    try:
        return MIN_BYTES <= len(content) <= max_bytes and "\0" not in content.decode()
    except UnicodeDecodeError:
        return False


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
