"""`reprise bench commits`: make pairs to replay from a git history.

Write pairs for `reprise bench replay --pairs`: a commit message and a file before the commit are the prompt,
the file after it is the answer. The newest pairs are taken, written in the order of their commits. Only text
files that a commit modified are used; merges are left out.
"""

import argparse
import os
import subprocess
from collections.abc import Iterator
from itertools import islice

from bench import options
from bench.errors import ArgumentsError
from bench.options import Flag
from bench.replay.pairs import Pair, write_pairs

MIN_BYTES = 400
"""Smaller files are left out."""


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
    newest = f"{given.revision}^{{commit}}"
    select = "--no-merges", "--min-parents=1", "--end-of-options", newest, "--"
    for commit in git(given.repository, "rev-list", *select).decode().split():
        found = islice(pairs_of(commit, given), min(given.per_commit, given.count - len(pairs)))
        pairs = [*found, *pairs]
        if len(pairs) == given.count:
            break
    if not pairs:
        raise ArgumentsError(f"{given.repository}: no commit modified a text file of that suffix and size")
    write_pairs(given.output, pairs)
    print(f"wrote {len(pairs)} pairs to {given.output}")
    return 0


def pairs_of(commit: str, given: argparse.Namespace) -> Iterator[Pair]:
    """Yield a pair for each text file of that suffix and size that a commit modified."""
    form = "-r", "-z", "--raw", "--no-renames", "--diff-filter=M", "--format=%x20%B"
    changed = git(given.repository, "diff-tree", *form, commit, "--")
    message, *changes = changed.decode(errors="replace").split("\0")
    for facts, path in zip(changes[::2], changes[1::2], strict=False):
        mode, _, *names, _ = facts.split()
        # Links and submodules have other modes.
        if message.strip() and mode.startswith(":100") and path.endswith(tuple(given.suffix) or ""):
            before, after = (_text(given, name) for name in names)
            if before and after and before != after:
                prompt = f"{message.strip()}\n\nAnswer with the whole file {path}.\n\n```\n{before}```\n"
                yield Pair(prompt, f"```\n{after}```\n", "commits", id=f"{commit[:12]}:{path}")


def _text(given: argparse.Namespace, name: str) -> str | None:
    """Return a file by the name of its object; None if it is too small, too large, or not text."""
    content = git(given.repository, "cat-file", "blob", name)
    try:
        is_text = MIN_BYTES <= len(content) <= given.max_bytes and b"\0" not in content
        return content.decode() if is_text else None
    except UnicodeDecodeError:
        return None


def git(repository: str, *words: str) -> bytes:
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
