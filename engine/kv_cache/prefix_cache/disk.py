"""Store prefixes in files, the second tier of the prefix cache, so that they survive a restart.

The index belongs to the engine's thread. A separate thread reads and writes the files, one after the other in
the order requested, so a prefix can be loaded as soon as save() has returned.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from functools import singledispatch
from pathlib import Path
from typing import Any

import mlx.core as mx

from reprise.config.whole_file import remove_unfinished, unfinished_path
from reprise.engine.kv_cache.prefix_cache import disk_file
from reprise.engine.kv_cache.prefix_cache.disk_file import (
    NAME_PATTERN,
    SUFFIX,
    Contents,
    Header,
    PrefixFileError,
)
from reprise.engine.kv_cache.prefix_cache.text_key import TextKey, Tokens
from reprise.engine.kv_cache.prefix_cache.trie import CutSlice
from reprise.engine.kv_cache.slices import KVSlice, State, num_bytes

log = logging.getLogger("reprise.engine")

MIN_SAVED_TOKENS = 256
"""Fewer new tokens are not worth a file; a later save includes them."""

MIN_STATE_TOKENS = 64
"""The same, where a later prompt can start only at the end of a file: after an answer, for example."""

HEADER_BYTES = 1024
"""Estimated bytes of a file besides its arrays."""

MAX_UNWRITTEN_BYTES = 512 * 2**20
"""Nothing more is saved while more bytes than this wait to be written."""


@dataclass(eq=False, slots=True)
class PrefixFile:
    """A file in the index.

    parent: the file that holds the tokens before this one's; None if there are none.
    used_at: when it was last used, in seconds since the epoch.
    children: files that continue this one, each from any token in it.
    """

    path: Path
    header: Header
    parent: "PrefixFile | None"
    num_bytes: int
    used_at: float
    children: "list[PrefixFile]" = field(default_factory=list)

    @property
    def end(self) -> int:
        """The number of tokens up to the end of this file, from the start of the prompt."""
        return self.header.start + len(self.header.tokens)


@dataclass
class _Index:
    """The files of a folder. roots: those that continue none. files: all, by name.

    writing: those that are not written yet. num_bytes: of all.
    """

    roots: list[PrefixFile] = field(default_factory=list)
    files: dict[str, PrefixFile] = field(default_factory=dict)
    writing: list[tuple[PrefixFile, Future[int]]] = field(default_factory=list)
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Loading:
    """A load in progress.

    files: the files being read, in the order of their tokens.
    ends: how far each file is used, as a number of tokens from the start of the prompt.
    future: the contents of each file, or the exception that reading it raised.
    others: the same load on the other ranks; None if the model is on one machine.
    """

    files: list[PrefixFile]
    ends: list[int]
    future: Future[list[Contents | Exception]]
    others: Any = None

    @property
    def starts(self) -> list[int]:
        """Where each file starts, as a number of tokens from the start of the prompt."""
        return [file.header.start for file in self.files]


class PrefixStore:
    """The prefix files of one model, in a folder that other models and processes may share.

    When the files exceed the budget, the one with the most bytes per token, times seconds since its last use,
    is deleted first. Without state all tokens take equal bytes: then it is the least recently used.

    folder: created if missing. Raises OSError if it cannot be used.
    fingerprint: identifies the model and everything else that KV slices depend on.
    needs_state: whether the model's caches hold state besides KV slices.
    """

    def __init__(self, folder: Path, budget_bytes: int, fingerprint: str, needs_state: bool) -> None:
        self._index = _Index()
        self._folder, self._budget_bytes = folder, budget_bytes
        self._fingerprint, self._needs_state = fingerprint, needs_state
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Raises now, rather than at the first save, if the folder cannot be written to.
        trial = unfinished_path(folder / f"{'0' * 40}{SUFFIX}")
        trial.touch()
        trial.unlink()
        remove_unfinished(folder, NAME_PATTERN)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefix-files")
        self._scan()
        self._shrink()

    def sibling(self, part: str, needs_state: bool) -> "PrefixStore":
        """Return the store of another part of the same model, which uses this folder, budget and thread.

        part: identifies that part. needs_state: whether its caches hold state besides KV slices.
        """
        other = copy(self)
        other._fingerprint = hashlib.sha256(f"{self._fingerprint} {part}".encode()).hexdigest()
        other._needs_state = needs_state
        return other

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all files."""
        return self._index.num_bytes

    def __len__(self) -> int:
        return len(self._index.files)

    def match(self, prompt: Tokens) -> int:
        """Return how many of the prompt's leading tokens can be loaded from files; never its last one."""
        return self._longest_match(TextKey.of(prompt)[:-1], self._needs_state)[1]

    def start_load(self, prompt: Tokens) -> Loading:
        """Start reading the files of the prompt's leading tokens that match() counts."""
        file, length = self._longest_match(TextKey.of(prompt)[:-1], self._needs_state)
        files = list(_with_ancestors(file))[::-1]
        ends = [child.header.start for child in files[1:]] + [length]
        now = time.time()
        for one in files:
            one.used_at = now
        future = self._thread.submit(_read_all, [one.path for one in files], now)
        return Loading(files, ends, future)

    def finish_load(self, loading: Loading) -> tuple[CutSlice, State] | None:
        """Wait for a load; return cut and state for PrefixCache.put(), or None if a file cannot be read."""
        contents = self._contents(loading)
        if contents is None:
            return None
        cut, state = join_contents(contents, loading.starts, loading.ends)
        return cut, state if self._needs_state else []

    def _contents(self, loading: Loading) -> list[Contents] | None:
        contents = []
        for file, each in zip(loading.files, loading.future.result(), strict=True):
            if isinstance(each, Exception):
                log.warning("dropped a saved prefix that cannot be read: %s", each)
                self._forget(file)
                return None
            contents.append(each)
        return contents

    def save(self, tokens: Tokens, cut: CutSlice, take_state: Callable[[], State]) -> None:
        """Start writing a file with those of the tokens that are in no file yet.

        Nothing is written if they are too few, too many bytes already wait for the disk, or they would take
        more than half of the budget.
        cut: called once, for the KV slice of these tokens. take_state: called once, for the state after them.
        """
        added = TextKey.of(tokens)
        parent, start = self._longest_match(added, False)
        min_tokens = min(MIN_SAVED_TOKENS, MIN_STATE_TOKENS) if self._needs_state else MIN_SAVED_TOKENS
        if len(added) - start < min_tokens or self._num_unwritten_bytes() > MAX_UNWRITTEN_BYTES:
            return
        kv_slice, state = cut(start, len(added)), take_state()
        size = num_bytes(kv_slice) + num_bytes(state) + added.ids[start:].nbytes + HEADER_BYTES
        if size > self._budget_bytes // 2:
            return
        # NAME_PATTERN matches this name.
        name = hashlib.sha256(self._fingerprint.encode() + added.tobytes()).hexdigest()[:40] + SUFFIX
        if name in self._index.files:
            return
        header = Header(
            self._fingerprint, parent.path.name if parent else "", start, added[start:], bool(state)
        )
        contents = self._copy(name, kv_slice, state)
        file = PrefixFile(self._folder / name, header, parent, size, time.time())
        self._add(file)
        self._index.writing.append((file, self._thread.submit(_write, file.path, header, contents)))
        self._shrink()

    def _copy(self, name: str, kv_slice: KVSlice, state: State) -> Contents:  # noqa: ARG002 - for others
        """Copy the arrays that a file of this name will hold."""
        return disk_file.copy_contents(kv_slice, state)

    def close(self) -> None:
        """Wait until all files are written, and end the thread."""
        self._thread.shutdown()

    def _num_unwritten_bytes(self) -> int:
        """Return the bytes that still wait for the disk. Forgets files that could not be written."""
        for file, writing in self._index.writing:
            if writing.done() and (fault := writing.exception()):
                log.warning("could not write a prefix to %s: %s", self._folder, fault)
                self._forget(file)
        self._index.writing = [one for one in self._index.writing if not one[1].done()]
        return sum(file.num_bytes for file, _ in self._index.writing)

    def _scan(self) -> None:
        found: dict[str, PrefixFile] = {}
        for path in self._folder.glob(f"*{SUFFIX}"):
            try:
                header, stat = disk_file.read_header(path), path.stat()
            except (PrefixFileError, OSError) as fault:
                log.warning("ignored a file in %s: %s", self._folder, fault)
                continue
            found[path.name] = PrefixFile(path, header, None, stat.st_size, stat.st_mtime)
        # Parents first: a file whose parent is gone is useless and deleted.
        for file in sorted(found.values(), key=lambda one: one.header.start):
            name, start = file.header.parent, file.header.start
            file.parent = self._index.files.get(name)
            if name and not (file.parent and file.parent.header.start < start <= file.parent.end):
                file.path.unlink(missing_ok=True)
            else:
                self._add(file)

    def _add(self, file: PrefixFile) -> None:
        self._index.files[file.path.name] = file
        (file.parent.children if file.parent else self._index.roots).append(file)
        self._index.num_bytes += file.num_bytes

    def _longest_match(self, tokens: TextKey, needs_state: bool) -> tuple[PrefixFile | None, int]:
        """Return the file that matches the most leading tokens, and how many; (None, 0) if none does.

        needs_state: match a file only up to its end, and only if it has state there.
        """
        best: PrefixFile | None = None
        length, open_files = 0, [(file, 0) for file in self._index.roots]
        while open_files:
            file, matched = open_files.pop()
            header = file.header
            if header.start > matched or header.fingerprint != self._fingerprint:
                continue
            matched = header.start + header.tokens.count_equal(tokens[header.start : file.end])
            is_usable = not needs_state or (header.has_state and matched == file.end)
            if is_usable and matched > max(length, header.start):
                best, length = file, matched
            open_files += [(child, matched) for child in file.children]
        return best, length

    def _shrink(self) -> None:
        """Delete files that have no children, until the rest fit the budget."""
        now = time.time()

        def cost(file: PrefixFile) -> tuple[float, float]:
            idle_s = max(0.0, now - file.used_at)
            return idle_s * file.num_bytes / len(file.header.tokens), -file.used_at

        while self.num_bytes > self._budget_bytes:
            self._forget(max((one for one in self._index.files.values() if not one.children), key=cost))

    def _forget(self, file: PrefixFile) -> None:
        """Delete a file and all that continue it."""
        for child in list(file.children):
            self._forget(child)
        if self._index.files.pop(file.path.name, None) is None:
            return
        (file.parent.children if file.parent else self._index.roots).remove(file)
        self._index.num_bytes -= file.num_bytes
        self._thread.submit(file.path.unlink, missing_ok=True)


@singledispatch
def make_store(
    model: Any, folder: Path, budget_bytes: int, fingerprint: str, needs_state: bool
) -> PrefixStore:
    """Open the prefix files of a model. Arguments: see PrefixStore. Raises OSError."""
    del model
    return PrefixStore(folder, budget_bytes, fingerprint, needs_state)


def join_contents(
    contents: Sequence[Contents], starts: Sequence[int], ends: Sequence[int]
) -> tuple[CutSlice, State]:
    """Return a function that cuts KV slices from consecutive files, and the state after the last file.

    starts, ends: where each file begins and how far it is used, in tokens from the start of the prompt.
    """
    whole = [[disk_file.from_stored(one) for one in each.kv_slice] for each in contents]

    def cut(start: int, end: int) -> KVSlice:
        parts = []
        for first, last, kv_slice in zip(starts, ends, whole, strict=True):
            low, high = max(start, first), min(end, last)
            if low < high:
                parts.append([array[:, :, low - first : high - first] for array in kv_slice])
        return [mx.concatenate(list(arrays), axis=2) for arrays in zip(*parts, strict=True)]

    return cut, [None if one is None else disk_file.from_stored(one) for one in contents[-1].state]


def _write(path: Path, header: Header, contents: Contents) -> int:
    remove_unfinished(path.parent, NAME_PATTERN)
    return disk_file.write(path, header, contents)


def _read_all(paths: list[Path], used_at: float) -> list[Contents | Exception]:
    return [_read(path, used_at) for path in paths]


def _read(path: Path, used_at: float) -> Contents | Exception:
    try:
        os.utime(path, (used_at, used_at))
        return disk_file.read(path)
    except Exception as fault:
        return fault


def _with_ancestors(file: PrefixFile | None) -> Iterator[PrefixFile]:
    """Yield a file, its parent, and so on up to the file with the first token."""
    while file:
        yield file
        file = file.parent
