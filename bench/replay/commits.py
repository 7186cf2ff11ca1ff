"""`reprise bench commits`: make pairs to replay from a git history.

Write pairs for `reprise bench replay --pairs`: a commit message and a file before the commit are the prompt,
the file after it is the answer. The newest pairs are taken, written in the order of their commits. Only text
files that a commit modified are used; merges are left out.
"""

import argparse
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from bench import options
from bench.errors import ArgumentsError
from bench.options import Flag
from bench.replay.pairs import Pair, write_pairs

MAX_MESSAGE_BYTES = 16_384
REGULAR = ("100644", "100755")
"""Modes of regular files, as opposed to links and submodules."""

_OPTIONS = (
    "--no-pager", "--no-replace-objects", *("-c", "core.fsmonitor=false"),
    *("-c", f"core.hooksPath={os.devnull}"), *("-c", f"core.attributesFile={os.devnull}"),
    *("-c", "protocol.allow=never"),
)  # fmt: skip
_VARIABLES = ("PATH", "HOME", "XDG_CONFIG_HOME", "SYSTEMROOT", "TMPDIR")


@dataclass(frozen=True, slots=True)
class Limits:
    """Which pairs to take. suffixes: of paths; empty: all paths. per_commit: maximum files of one commit.

    revision: the newest commit to use.
    """

    count: int = 200
    per_commit: int = 4
    min_bytes: int = 400
    max_bytes: int = 32_000
    suffixes: tuple[str, ...] = ()
    revision: str = "HEAD"


class GitError(ArgumentsError):
    """The history cannot be read; the message quotes git."""


class Repository:
    """Reads objects of a local git repository.

    Raises GitError if the folder is not a repository, or git refuses to read it.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ArgumentsError(f"{folder} is not a folder; only local repositories can be read")
        self.folder = folder.resolve()
        self.run("rev-parse", "--git-dir")

    def run(self, *words: str) -> bytes:
        """Run a git command and return its output. Raises GitError."""
        command = ["git", *_OPTIONS, "-C", str(self.folder), *words]
        try:
            done = subprocess.run(
                command, env=_environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False
            )
        except OSError as fault:
            raise GitError(f"cannot run git: {fault.strerror}") from None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it failed"]
            raise GitError(f"git cannot read {self.folder}: {lines[0]}")
        return done.stdout

    def commits(self, revision: str = "HEAD") -> list[str]:
        """Return a commit and its ancestors, newest first, without merges and root commits."""
        found = self.run("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
        last = found.decode().split()[-1]
        return self.run("rev-list", "--no-merges", "--min-parents=1", last, "--").decode().split()

    def changes(self, commit: str) -> Iterator[tuple[str, str, str]]:
        """Yield path, old and new object of the regular files that a commit modified; not renamed ones."""
        output = self.run(
            *("diff-tree", "-r", "-z", "--raw", "--no-renames", "--diff-filter=M", "--no-commit-id"),
            *("--no-ext-diff", "--no-textconv", "--full-index", commit, "--"),
        )
        parts = output.split(b"\0")[:-1]
        for facts, path in zip(parts[::2], parts[1::2], strict=True):
            *modes, before, after, _ = facts.decode().lstrip(":").split(" ")
            if set(modes) <= set(REGULAR) and before != after:
                yield path.decode(errors="replace"), before, after

    def text(self, name: str, min_bytes: int, max_bytes: int, kind: str = "blob") -> str | None:
        """Return an object as text; None if it is missing, outside these sizes, or not text."""
        try:
            if not min_bytes <= int(self.run("cat-file", "-s", name)) <= max_bytes:
                return None
            content = self.run("cat-file", kind, name)
            return None if b"\0" in content else content.decode()
        except (GitError, UnicodeDecodeError):
            return None

    def pairs(self, commit: str, limits: Limits) -> Iterator[Pair]:
        """Yield a pair for each file that fits, up to the limit of one commit."""
        text = self.text(commit, 0, MAX_MESSAGE_BYTES, "commit")
        message = (text or "").partition("\n\n")[2].strip()
        changes = self.changes(commit) if message else ()
        fitting = (one for one in changes if one[0].endswith(limits.suffixes or ("",)))
        contents = (
            (path, *(self.text(name, limits.min_bytes, limits.max_bytes) for name in names))
            for path, *names in fitting
        )
        readable = ((path, before, after) for path, before, after in contents if None not in (before, after))
        for path, before, after in islice(readable, limits.per_commit):
            prompt = f"{message}\n\nAnswer with the whole file {path}.\n\n```\n{before}```\n"
            yield Pair(prompt, f"```\n{after}```\n", "commits", id=f"{commit[:12]}:{path}")


def pairs_of(repository: Repository, limits: Limits) -> list[Pair]:
    """Return the newest pairs of a history, in the order of their commits."""
    found: list[Pair] = []
    for commit in repository.commits(limits.revision):
        # The final reversal restores the order of paths within a commit.
        found += [*islice(repository.pairs(commit, limits), limits.count - len(found))][::-1]
        if len(found) == limits.count:
            break
    return found[::-1]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench commits` to the parser."""
    parser.add_argument("repository", type=Path, metavar="REPO", help="A local git repository.")
    parser.add_argument("-o", "--output", type=options.output_file, required=True, metavar="FILE")
    parser.add_argument("--suffix", action="append", default=[],
                        help="Only paths with this suffix; may be repeated.")  # fmt: skip
    number, limits = options.count, Limits()
    options.declare(
        parser,
        Flag("--count", number, "N", limits.count, "Maximum pairs."),
        Flag("--per-commit", number, "N", limits.per_commit, "Maximum files of one commit."),
        Flag("--min-bytes", number, "N", limits.min_bytes, "Minimum size of a file."),
        Flag("--max-bytes", number, "N", limits.max_bytes, "Maximum size of a file."),
        Flag("--revision", str, "REV", limits.revision, "Newest commit to use."),
    )


def run(given: argparse.Namespace) -> int:
    """Read a history, write pairs, and return the exit status."""
    sizes = given.count, given.per_commit, given.min_bytes, given.max_bytes
    pairs = pairs_of(Repository(given.repository), Limits(*sizes, tuple(given.suffix), given.revision))
    if not pairs:
        raise ArgumentsError(f"{given.repository}: no commit modified a text file of that suffix and size")
    write_pairs(given.output, pairs)
    print(f"wrote {len(pairs)} pairs to {given.output}")
    return 0


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
    return kept | quiet
