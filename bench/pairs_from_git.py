"""Make pairs from a git history: the commit message and the old file are the prompt, the new file the answer.

    python -m bench.pairs_from_git REPO -o pairs.jsonl
    python -m bench.pairs_from_git REPO -o pairs.jsonl --suffix .py --suffix .md --count 500

The newest pairs are taken, and written in the order of their commits. Only text files that a commit modified
are used; merges are left out. The repository is only read, with git plumbing commands that run none of its
hooks, filters or pagers; missing objects are not fetched.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import options
from bench.errors import ArgumentsError, BenchError
from bench.pairs import Pair, write_pairs

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
class Change:
    """A file that a commit modified. before, after: object names of its contents."""

    commit: str
    path: str
    before: str
    after: str


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


class GitError(BenchError):
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

    def changes(self, commit: str) -> list[Change]:
        """Return the regular files that a commit modified; added, deleted and renamed files are left out."""
        output = self.run(
            *("diff-tree", "-r", "-z", "--raw", "--no-renames", "--diff-filter=M", "--no-commit-id"),
            *("--no-ext-diff", "--no-textconv", "--full-index", commit, "--"),
        )
        parts = output.split(b"\0")[:-1]
        found = []
        for facts, path in zip(parts[::2], parts[1::2], strict=True):
            old_mode, new_mode, before, after, _ = facts.decode().lstrip(":").split(" ")
            if old_mode in REGULAR and new_mode in REGULAR and before != after:
                found.append(Change(commit, path.decode(errors="replace"), before, after))
        return found

    def text(self, name: str, min_bytes: int, max_bytes: int, kind: str = "blob") -> str | None:
        """Return an object as text; None if it is missing, outside these sizes, or not text."""
        try:
            if not min_bytes <= int(self.run("cat-file", "-s", name)) <= max_bytes:
                return None
            content = self.run("cat-file", kind, name)
            return None if b"\0" in content else content.decode()
        except (GitError, UnicodeDecodeError):
            return None

    def message(self, commit: str) -> str | None:
        """Return a commit's message; None if it is not text, or too long."""
        text = self.text(commit, 0, MAX_MESSAGE_BYTES, "commit")
        return None if text is None else text.partition("\n\n")[2].strip()


def pairs_of(repository: Repository, limits: Limits) -> list[Pair]:
    """Return the newest pairs of a history, in the order of their commits."""
    found: list[Pair] = []
    for commit in repository.commits(limits.revision):
        of_commit = list(_pairs_of_commit(repository, commit, limits))
        # The final reversal restores the order of paths within a commit.
        found += reversed(of_commit[: limits.count - len(found)])
        if len(found) == limits.count:
            break
    return found[::-1]


def _pairs_of_commit(repository: Repository, commit: str, limits: Limits) -> Iterator[Pair]:
    message = repository.message(commit)
    if not message:
        return
    count = 0
    for change in repository.changes(commit):
        if count == limits.per_commit:
            return
        if limits.suffixes and not change.path.endswith(limits.suffixes):
            continue
        before, after = (
            repository.text(name, limits.min_bytes, limits.max_bytes)
            for name in (change.before, change.after)
        )
        if before is not None and after is not None:
            count += 1
            yield pair_of(message, change, before, after)


def pair_of(message: str, change: Change, before: str, after: str) -> Pair:
    """Return the pair that asks for the change a commit made to a file."""
    prompt = f"{message}\n\nAnswer with the whole file {change.path}.\n\n```\n{before}```\n"
    return Pair(prompt, f"```\n{after}```\n", "commits", id=f"{change.commit[:12]}:{change.path}")


def main(given: Sequence[str] | None = None) -> int:
    """Read a history, write pairs, and return the exit status."""
    defaults = Limits()
    summary, _, more = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="python -m bench.pairs_from_git",
        description=summary,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("repository", type=Path, metavar="REPO", help="A local git repository.")
    add("-o", "--output", type=options.output_file, required=True, metavar="FILE")
    number = options.count
    add("--count", type=number, default=defaults.count, help=f"Maximum pairs ({defaults.count}).")
    add("--per-commit", type=number, default=defaults.per_commit,
        help=f"Maximum files of one commit ({defaults.per_commit}).")  # fmt: skip
    add("--min-bytes", type=number, default=defaults.min_bytes,
        help=f"Minimum size of a file ({defaults.min_bytes}).")  # fmt: skip
    add("--max-bytes", type=number, default=defaults.max_bytes,
        help=f"Maximum size of a file ({defaults.max_bytes}).")  # fmt: skip
    add("--revision", default=defaults.revision, metavar="REV",
        help=f"Newest commit to use ({defaults.revision}).")  # fmt: skip
    add("--suffix", action="append", default=[], help="Only paths with this suffix; may be repeated.")
    arguments = parser.parse_args(given)
    sizes = arguments.count, arguments.per_commit, arguments.min_bytes, arguments.max_bytes
    limits = Limits(*sizes, tuple(arguments.suffix), arguments.revision)
    try:
        pairs = pairs_of(Repository(arguments.repository), limits)
        if not pairs:
            raise ArgumentsError(
                f"{arguments.repository}: no commit modified a text file of that suffix and size"
            )
        write_pairs(arguments.output, pairs)
    except BenchError as fault:
        print(f"python -m bench.pairs_from_git: {fault}", file=sys.stderr)
        return 2
    print(f"wrote {len(pairs)} pairs to {arguments.output}")
    return 0


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
    return kept | quiet


if __name__ == "__main__":
    sys.exit(main())
