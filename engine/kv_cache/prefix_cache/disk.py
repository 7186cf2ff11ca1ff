"""Store prefixes in files, the second tier of the prefix cache, so that they survive a restart.

The index belongs to the engine's thread. A separate thread reads and writes the files, one after the other in
the order requested, so a prefix can be loaded as soon as save() has returned.
"""

import hashlib
import logging
import os
import re
import shutil
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import singledispatch
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any
from weakref import WeakSet

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from reprise.config.atomic_files import remove_unfinished, unfinished_path, write_whole
from reprise.engine.kv_cache.buffers import KVSlice, State, num_bytes
from reprise.engine.kv_cache.prefix_cache.text_key import TextKey, Tokens
from reprise.engine.kv_cache.prefix_cache.trie import CutSlice

BLOCK_WORDS = 2**18
"""32-bit words that one sum covers: few enough to stay in a processor's cache."""


def weights_fingerprint(model: Any, others: Sequence[mx.array] = ()) -> str:
    """Return a digest of the names, shapes, dtypes and numbers of all parameters: 32 hexadecimal digits.

    Reads every parameter once, on the device. others: further arrays to cover, which the model does not have.
    """
    digest = hashlib.sha256()
    numbered = {str(number): array for number, array in enumerate(others)}
    for name, array in sorted((dict(tree_flatten(model.parameters())) | numbered).items()):
        digest.update(f"{name} {array.shape} {array.dtype} ".encode())
        for total in _sums(array):
            digest.update(total.to_bytes(4, "little"))
    return digest.hexdigest()[:32]


def _sums(array: mx.array) -> list[int]:
    """Return each block's sum of an array's words, every word with its own odd weight.

    The sums are modulo 2**32.
    """
    data = mx.contiguous(array).reshape(-1)
    if array.nbytes % 4:
        data = mx.pad(data.view(mx.uint8), (0, -array.nbytes % 4))
    data = data.view(mx.uint32)
    odd = 2 * mx.arange(min(BLOCK_WORDS, data.size), dtype=mx.uint32) + 1
    sums = []
    for start in range(0, data.size, BLOCK_WORDS):
        block = data[start : start + BLOCK_WORDS]
        # Multiplying by an odd number is invertible, so a change of any single word changes the sum.
        sums.append((block * odd[: block.size]).sum())
    mx.eval(sums)
    return [one.item() for one in sums]  # type: ignore[misc]


FORMAT = "reprise prefix 1"
SUFFIX = ".prefix"
NAME_PATTERN = rf"[0-9a-f]{{40}}{re.escape(SUFFIX)}"
"""A regular expression for the names of prefix files."""

Array = np.ndarray[Any, np.dtype[Any]]
Stored = tuple[str, Array] | mx.array
"""The name of an array's MLX dtype, and its numbers in a dtype that numpy has; or the array itself."""


class PrefixFileError(Exception):
    """A file is not a usable prefix file; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a prefix file: the facts known without reading its KV slice and state.

    fingerprint: identifies the model and everything else that the file's arrays depend on.
    parent: name of the file with the tokens before this one's; "" if there are none.
    start: number of tokens before this file's own.
    tokens: the file's own tokens.
    has_state: whether the file has state after its last token.
    """

    fingerprint: str
    parent: str
    start: int
    tokens: TextKey
    has_state: bool


@dataclass(frozen=True, slots=True)
class Contents:
    """The arrays of a prefix file. state: None stands for an array that the caches had not set."""

    kv_slice: list[Stored]
    state: list[Stored | None]


def from_stored(one: Stored) -> mx.array:
    """Return a stored array as MLX's."""
    if isinstance(one, mx.array):
        return one
    kind, numbers = one
    array = mx.array(numbers)
    return array.view(mx.bfloat16) if kind == "bfloat16" else array


def to_contents(kv_slice: KVSlice, state: State) -> Contents:
    """Evaluate a KV slice and a state, so that any thread can read them.

    They share MLX's memory: to copy a gigabyte takes tenths of a second, and evaluated arrays never change.
    """
    mx.eval(kv_slice, state)
    return Contents(
        [_stored(one) for one in kv_slice], [None if one is None else _stored(one) for one in state]
    )


def _stored(array: mx.array) -> Stored:
    kind = str(array.dtype).rpartition(".")[2]
    # numpy has no bfloat16.
    return kind, np.asarray(array.view(mx.uint16) if kind == "bfloat16" else array)


def write(path: Path, header: Header, contents: Contents) -> int:
    """Write a whole file or none, even if the power fails; return its number of bytes. Raises OSError.

    Only the owner can read the file, because it holds what users wrote.
    """
    # Format 1 calls the arrays of the KV slice "strip".
    arrays = {f"strip {i}": one for i, one in enumerate(contents.kv_slice) if isinstance(one, tuple)}
    arrays |= {f"state {i}": one for i, one in enumerate(contents.state) if isinstance(one, tuple)}
    numbers = {name: np.ascontiguousarray(array) for name, (_, array) in arrays.items()}
    numbers["tokens"] = header.tokens.ids
    metadata = {
        "format": FORMAT,
        "fingerprint": header.fingerprint,
        "parent": header.parent,
        "start": str(header.start),
        "num_strips": str(len(contents.kv_slice)),
        "num_states": str(len(contents.state)),
        "kinds": ",".join(f"{name}={kind}" for name, (kind, _) in arrays.items()),
        "checksum": str(_checksum(numbers)),
        "pictures": ",".join(f"{at}={digest.hex()}" for at, digest in header.tokens.pictures),
    }
    data = save(numbers, metadata)
    write_whole(path, data)
    return len(data)


def read_header(path: Path) -> Header:
    """Read a file's header. Raises PrefixFileError if it cannot be read or is not a prefix file."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = _metadata(file, path.name)
            return Header(
                metadata["fingerprint"], metadata["parent"], int(metadata["start"]),
                _read_tokens(file, metadata), int(metadata["num_states"]) > 0,
            )  # fmt: skip
    except (OSError, SafetensorError, KeyError, ValueError) as fault:
        raise PrefixFileError(f"{path.name} cannot be read: {fault}") from fault


def read(path: Path) -> Contents:
    """Read all arrays of a file. Raises PrefixFileError if it cannot be read or is damaged."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = _metadata(file, path.name)
            numbers = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        if _checksum(numbers) != int(metadata["checksum"]):
            raise PrefixFileError(f"{path.name} is damaged: its checksum is wrong")
        kinds = dict(pair.split("=") for pair in metadata["kinds"].split(",") if pair)
        found: dict[str, Stored] = {name: (kind, numbers[name]) for name, kind in kinds.items()}
        kv_slice = [found[f"strip {i}"] for i in range(int(metadata["num_strips"]))]
        return Contents(kv_slice, [found.get(f"state {i}") for i in range(int(metadata["num_states"]))])
    except (OSError, SafetensorError, KeyError, ValueError) as fault:
        raise PrefixFileError(f"{path.name} cannot be read: {fault}") from fault


def _metadata(file: Any, name: str) -> dict[str, str]:
    metadata: dict[str, str] = file.metadata() or {}
    if metadata.get("format") != FORMAT:
        raise PrefixFileError(f"{name} is not a prefix file of this version of Reprise")
    return metadata


def _read_tokens(file: Any, metadata: dict[str, str]) -> TextKey:
    ids = file.get_tensor("tokens").astype(np.int32).reshape(-1)
    # Older files have none, and so match no text beyond its first picture.
    pairs = (pair.split("=") for pair in metadata.get("pictures", "").split(",") if pair)
    return TextKey(ids, tuple((int(at), bytes.fromhex(digest)) for at, digest in pairs))


def _checksum(numbers: dict[str, Array]) -> int:
    value = 0
    for name in sorted(numbers):
        value = zlib.crc32(np.ascontiguousarray(numbers[name]).view(np.uint8).data, value)
    return value


log = logging.getLogger("reprise.engine")

MIN_SAVED_TOKENS = 256
"""Minimum new tokens for a file; a later save includes fewer ones."""

MIN_STATE_TOKENS = 64
"""The same, where a later prompt can start only at the end of a file: after an answer, for example."""

FILE_TOKENS = 1024
"""Tokens of one file; more new ones go into several. So writing never copies gigabytes at once."""

MAX_FILES = 2048
"""Files in a folder. Opening it reads the header of each."""

OPENING_TOKENS = MIN_STATE_TOKENS
"""A lookup compares so many tokens of every file first, as bytes: no file has fewer."""

HEADER_BYTES = 1024
"""Estimated bytes of a file besides its arrays."""

MAX_TURNED_BYTES = 64 * 2**20
"""Bytes that one call of advance_load() turns into MLX's arrays, and one array more."""

MAX_LOAD_S = 20.0
"""A load that takes longer is given up: the disk may hang, as one of another machine does."""

MAX_CLOSE_S = 2.0
"""The engine's thread waits no longer for the last files of a model that is unloaded: others need it."""

MAX_UNWRITTEN_BYTES = 512 * 2**20
"""Nothing more is saved while more bytes than this wait to be written."""

MAX_BUDGET_BYTES, DISK_SHARE = 20 * 10**9, 10
"""Without a given budget: the most bytes of a folder, and the part of the free disk, 1 / DISK_SHARE."""

HOURLY_BYTES, HOURLY_REST_BYTES = 5 * 10**9, 2 * 10**9
"""Bytes written at most in an hour, as writing wears disks out; and how many of them may be of texts beyond
the first prompt (GenerationRequest.head_tokens), which every session of an agent begins with."""

USED_S = 600
"""Seconds after which the file system is told again that a file was used."""


class HourOfWrites:
    """Counts the bytes that were written in the last hour."""

    def __init__(self) -> None:
        self._writes: deque[tuple[float, int]] = deque()
        self._total = 0

    def num_bytes(self) -> int:
        """Return the bytes written in the last hour."""
        while self._writes and self._writes[0][0] <= time.monotonic() - 3600:
            self._total -= self._writes.popleft()[1]
        return self._total

    def add(self, num_bytes: int) -> None:
        """Count bytes that are written now."""
        self._writes.append((time.monotonic(), num_bytes))
        self._total += num_bytes


WRITES = HourOfWrites()
"""Of this process, for all models and folders together. Used by the engine's thread only."""


@dataclass(eq=False, slots=True)
class PrefixFile:
    """A file in the index.

    parent: the file that holds the tokens before this one's; None if there are none.
    used_at: when it was last used, in seconds since the epoch. told_at: the same, as its mtime says.
    children: files that continue this one, each from any token in it.
    opening: its first ids.
    """

    path: Path
    header: Header
    parent: "PrefixFile | None"
    num_bytes: int
    used_at: float
    children: "list[PrefixFile]" = field(default_factory=list)
    told_at: float = field(init=False)
    opening: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.told_at = self.used_at
        self.opening = self.header.tokens.ids[:OPENING_TOKENS].tobytes()

    @property
    def end(self) -> int:
        """The number of tokens up to the end of this file, from the start of the prompt."""
        return self.header.start + len(self.header.tokens)


@dataclass(frozen=True, slots=True)
class Listing:
    """What a folder held at some time.

    known: the names that were in the index when it was requested. used_at: of all prefix files, by name.
    found: those that were not known. free_bytes: of the disk.
    """

    known: AbstractSet[str]
    used_at: Mapping[str, float]
    found: list[PrefixFile]
    free_bytes: int


@dataclass
class _Index:
    """The files of a folder. roots: those that continue none. files: all, by name.

    writing: those that are not written yet. reads: what is read, or was and is in use. listing: a look at the
        folder that has begun.
    unreadable: names of other files.
    num_bytes: of all files. budget_bytes: their maximum. is_failing: whether the last write failed.
    written_bytes: written so far. num_left_out: saves that the limit of an hour stopped.
    """

    roots: list[PrefixFile] = field(default_factory=list)
    files: dict[str, PrefixFile] = field(default_factory=dict)
    writing: list[tuple[PrefixFile, Future[int]]] = field(default_factory=list)
    reads: WeakSet[Future[Contents]] = field(default_factory=WeakSet)
    listing: Future[Listing] | None = None
    unreadable: set[str] = field(default_factory=set)
    num_bytes: int = 0
    budget_bytes: int = 0
    is_failing: bool = False
    written_bytes: int = 0
    num_left_out: int = 0


@dataclass(frozen=True)
class Loading:
    """A load in progress.

    files: the files being read, in the order of their tokens.
    ends: how far each file is used, as a number of tokens from the start of the prompt.
    reads: the contents of each file.
    started_at: time.monotonic() when it was requested.
    """

    files: list[PrefixFile]
    ends: list[int]
    reads: list[Future[Contents]]
    started_at: float = field(default_factory=time.monotonic)

    def wait(self, timeout_s: float = 0.0) -> bool:
        """Wait until all files are read, at most for so long; return whether they are."""
        wait(self.reads, timeout_s)
        return all(one.done() for one in self.reads)

    def cancel(self) -> None:
        """Read no more files."""
        for one in self.reads:
            one.cancel()

    @property
    def is_late(self) -> bool:
        """Whether it takes so long that the prompt is rather computed, unless all files are read by now."""
        return time.monotonic() - self.started_at > MAX_LOAD_S

    @property
    def starts(self) -> list[int]:
        """Where each file starts, as a number of tokens from the start of the prompt."""
        return [file.header.start for file in self.files]


class PrefixStore:
    """The prefix files of one model, in a folder that other models and processes may share.

    After each write the folder is listed again, so files that others write and delete are known.
    When the files exceed the budget, the one with the highest product of bytes per token and seconds since
    its last use is deleted first. Without state all tokens take equal bytes, so that is the least recently
    used.

    folder: created if missing. Raises OSError if it cannot be used.
    budget_bytes: None for a tenth of the free disk, at most MAX_BUDGET_BYTES.
    fingerprint: identifies the model and everything else that KV slices depend on.
    needs_state: whether the model's caches hold state besides KV slices.
    """

    def __init__(self, folder: Path, budget_bytes: int | None, fingerprint: str, needs_state: bool) -> None:
        self._index = _Index()
        self._folder, self._given_budget_bytes = folder, budget_bytes
        self._fingerprint, self._needs_state = fingerprint, needs_state
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Raises now, rather than at the first save, if the folder cannot be written to.
        trial = unfinished_path(folder / f"{'0' * 40}{SUFFIX}")
        trial.touch()
        trial.unlink()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefix-files")
        self._take_in(list_folder(folder, frozenset()))

    def sibling(self, part: str, needs_state: bool) -> "PrefixStore":
        """Return a store for another part of the model, with the same folder, budget and thread.

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

    @property
    def budget_bytes(self) -> int:
        """Return the most bytes of all files."""
        return self._index.budget_bytes

    @property
    def written_bytes(self) -> int:
        """Return the bytes written so far."""
        return self._index.written_bytes

    @property
    def num_left_out(self) -> int:
        """Return how many saves were cut short because the hour's bytes were used up."""
        return self._index.num_left_out

    def __len__(self) -> int:
        return len(self._index.files)

    def match(self, prompt: Tokens) -> int:
        """Return how many leading tokens of a prompt files hold; never its last one."""
        return self._longest_match(TextKey.of(prompt)[:-1], self._needs_state)[1]

    def start_load(self, prompt: Tokens) -> Loading:
        """Start reading the files of the prompt's leading tokens that match() counts."""
        file, length = self._longest_match(TextKey.of(prompt)[:-1], self._needs_state)
        files = list(_with_ancestors(file))[::-1]
        ends = [child.header.start for child in files[1:]] + [length]
        self._mark_used(file)
        reads = [self._thread.submit(read, one.path) for one in files]
        self._index.reads.update(reads)
        return Loading(files, ends, reads)

    def advance_load(self, loading: Loading) -> bool:
        """Convert the next array that was read to MLX; return whether any is left.

        It takes some hundredths of a second at most, while finish_load() takes tenths for a gigabyte.
        """
        num_left = MAX_TURNED_BYTES
        for each in loading.reads:
            if each.exception():
                return False
            for arrays in (each.result().kv_slice, each.result().state):
                for index, one in enumerate(arrays):
                    if isinstance(one, tuple):
                        if num_left <= 0:
                            return True
                        num_left -= one[1].nbytes
                        arrays[index] = from_stored(one)
        return False

    def finish_load(self, loading: Loading) -> tuple[CutSlice, State] | None:
        """Wait for a load; return cut and state for PrefixCache.put(), or None if a file cannot be read."""
        contents = self._contents(loading)
        if contents is None:
            return None
        cut, state = join_contents(contents, loading.starts, loading.ends)
        return cut, state if self._needs_state else []

    def _contents(self, loading: Loading) -> list[Contents] | None:
        contents = []
        for file, each in zip(loading.files, loading.reads, strict=True):
            if fault := each.exception():
                log.warning("dropped a saved prefix that cannot be read: %s", fault)
                self._forget(file)
                return None
            contents.append(each.result())
        return contents

    def save(
        self,
        tokens: Tokens,
        cut: CutSlice,
        take_state: Callable[[], State],
        may_copy: Callable[[int], bool] = lambda _: True,
        *,
        is_head: bool = False,
    ) -> bool:
        """Start writing the tokens that are in no file yet; return whether all are, or too few to write.

        Those at the end are not written if too many bytes wait for the disk, an hour's bytes are used up, the
        tokens before them fill the folder, or memory does not allow a copy.
        cut: called for the KV slices of consecutive runs of tokens. take_state: called at most once, for the
        state after the last token. may_copy: whether memory allows a copy of so many tokens.
        is_head: whether these tokens are of a first prompt, for which a part of the hour's bytes is reserved.
        """
        self._catch_up()
        added = TextKey.of(tokens)
        parent, start = self._longest_match(added, False)
        self._mark_used(parent)
        min_tokens = min(MIN_SAVED_TOKENS, MIN_STATE_TOKENS) if self._needs_state else MIN_SAVED_TOKENS
        while (num_left := len(added) - start) >= min_tokens:
            end = start + FILE_TOKENS if num_left >= FILE_TOKENS + min_tokens else len(added)
            if sum(file.num_bytes for file, _ in self._index.writing) > MAX_UNWRITTEN_BYTES:
                return False
            if not may_copy(end - start):
                return False
            kv_slice, state = cut(start, end), take_state() if end == len(added) else []
            size = num_bytes(kv_slice) + num_bytes(state) + added.ids[start:end].nbytes + HEADER_BYTES
            if WRITES.num_bytes() + size > (HOURLY_BYTES if is_head else HOURLY_REST_BYTES):
                self._index.num_left_out += 1
                return False
            # NAME_PATTERN matches this name. Another process may cut the same text elsewhere.
            digest = hashlib.sha256(f"{self._fingerprint} {start} ".encode() + added[:end].tobytes())
            name = digest.hexdigest()[:40] + SUFFIX
            if name in self._index.files:
                return True
            if size > self._index.budget_bytes // 2 or not self._shrink(size, parent):
                # The disk may have more room by now.
                self._look_again()
                return False
            header = Header(
                self._fingerprint, parent.path.name if parent else "", start, added[start:end], bool(state)
            )
            contents = self._contents_of(name, kv_slice, state)
            file = PrefixFile(self._folder / name, header, parent, size, time.time())
            self._add(file)
            WRITES.add(size)
            self._index.writing.append((file, self._thread.submit(_write, file.path, header, contents)))
            self._look_again()
            parent, start = file, end
        return True

    def _contents_of(self, name: str, kv_slice: KVSlice, state: State) -> Contents:  # noqa: ARG002 - for others
        """Return what a file of this name will hold."""
        return to_contents(kv_slice, state)

    def close(self) -> None:
        """Wait until all files are written, but not for long: the thread writes what is left, and ends."""
        for one in self._index.reads:
            one.cancel()
        wait([self._thread.submit(int)], MAX_CLOSE_S)
        if not all(one.done() for _, one in self._index.writing):
            log.warning("cached prefixes are still being written to %s: the disk is slow", self._folder)
        self._thread.shutdown(wait=False)

    def _look_again(self) -> None:
        """Start to list the folder, after all writes that have been requested."""
        if self._index.listing is not None:
            self._index.listing.cancel()
        known = frozenset(self._index.files) | self._index.unreadable
        self._index.listing = self._thread.submit(list_folder, self._folder, known)

    def _catch_up(self) -> None:
        """Note which writes have ended, and what others have done to the folder."""
        index = self._index
        ended = [one for one in index.writing if one[1].done()]
        index.writing = [one for one in index.writing if not one[1].done()]
        for file, writing in ended:
            if fault := writing.exception():
                # A disk that stays full would fill the log.
                level = logging.DEBUG if index.is_failing else logging.WARNING
                log.log(level, "could not write a prefix to %s: %s", self._folder, fault)
                self._forget(file)
            else:
                index.written_bytes += writing.result()
                if file.path.name in index.files:
                    index.num_bytes += writing.result() - file.num_bytes
                    file.num_bytes = writing.result()
            index.is_failing = fault is not None
        if index.listing is not None and index.listing.done():
            listing, index.listing = index.listing, None
            if listing.exception() is None:
                self._take_in(listing.result())

    def _take_in(self, listing: Listing) -> None:
        """Bring the index up to a listing, and delete what exceeds the budget."""
        names, found = set(listing.used_at), {one.path.name for one in listing.found}
        self._index.unreadable |= names - listing.known - found
        for name in listing.known:
            if (file := self._index.files.get(name)) is None:
                continue
            if name not in names:
                self._forget(file)
            elif listing.used_at[name] > file.used_at + USED_S:
                # By another process.
                file.used_at = listing.used_at[name]
        # Parents first: a file whose parent is gone is useless and deleted.
        for file in sorted(listing.found, key=lambda one: one.header.start):
            if file.path.name in self._index.files:
                continue
            name, start = file.header.parent, file.header.start
            file.parent = self._index.files.get(name)
            if name and not (file.parent and file.parent.header.start < start <= file.parent.end):
                self._thread.submit(file.path.unlink, missing_ok=True)
            else:
                self._add(file)
        self._index.budget_bytes = self._given_budget_bytes or min(
            MAX_BUDGET_BYTES, (listing.free_bytes + self.num_bytes) // DISK_SHARE
        )
        self._shrink()

    def _mark_used(self, file: PrefixFile | None) -> None:
        """Note that a file and those before it were used now, also by a prompt that memory held."""
        now = time.time()
        for one in _with_ancestors(file):
            one.used_at = now
            if abs(now - one.told_at) > USED_S:
                self._thread.submit(os.utime, one.path, (now, now))
                one.told_at = now

    def _add(self, file: PrefixFile) -> None:
        self._index.files[file.path.name] = file
        (file.parent.children if file.parent else self._index.roots).append(file)
        self._index.num_bytes += file.num_bytes

    def _longest_match(self, tokens: TextKey, needs_state: bool) -> tuple[PrefixFile | None, int]:
        """Return the file that matches the most leading tokens, and their number; (None, 0) if none does.

        A file counts only if its opening matches, or all that the tokens have of it.

        needs_state: match a file only up to its end, and only if it has state there.
        """
        best: PrefixFile | None = None
        length, open_files = 0, [(file, 0) for file in self._index.roots]
        openings: dict[int, bytes] = {}
        while open_files:
            file, matched = open_files.pop()
            header, start = file.header, file.header.start
            if start > matched or header.fingerprint != self._fingerprint:
                continue
            if start not in openings:
                openings[start] = tokens.ids[start : start + OPENING_TOKENS].tobytes()
            if not file.opening.startswith(openings[start]):
                continue
            matched = header.start + header.tokens.count_equal(tokens[header.start : file.end])
            is_usable = not needs_state or (header.has_state and matched == file.end)
            if is_usable and matched > max(length, header.start):
                best, length = file, matched
            open_files += [(child, matched) for child in file.children]
        return best, length

    def _shrink(self, num_new_bytes: int = 0, kept: PrefixFile | None = None) -> bool:
        """Delete files that have no children, until the rest fit the budget; return whether they do.

        num_new_bytes: of a file to be added. kept: a file that stays.
        """
        now = time.time()

        def rank(file: PrefixFile) -> tuple[float, float, str]:
            idle_s = max(0.0, now - file.used_at)
            return -idle_s * file.num_bytes / max(1, len(file.header.tokens)), file.used_at, file.path.name

        index, queue = self._index, list[tuple[tuple[float, float, str], PrefixFile]]()
        max_bytes, max_files = index.budget_bytes - num_new_bytes, MAX_FILES - bool(num_new_bytes)
        while index.num_bytes > max_bytes or len(index.files) > max_files:
            if not queue:
                leaves = [one for one in index.files.values() if not one.children and one is not kept]
                queue += [(rank(one), one) for one in leaves]
                heapify(queue)
            if not queue:
                return False
            _, file = heappop(queue)
            self._forget(file)
            if (above := file.parent) and not above.children and above is not kept:
                heappush(queue, (rank(above), above))
        return True

    def _forget(self, file: PrefixFile) -> None:
        """Delete a file and all that continue it."""
        if self._index.files.get(file.path.name) is not file:
            return
        (file.parent.children if file.parent else self._index.roots).remove(file)
        # A conversation may have more files than Python allows calls within calls.
        left = [file]
        while left:
            one = left.pop()
            left += one.children
            del self._index.files[one.path.name]
            self._index.num_bytes -= one.num_bytes
            self._delete(one)

    def _delete(self, file: PrefixFile) -> None:
        """Delete a file that is in the index no more."""
        self._thread.submit(file.path.unlink, missing_ok=True)


@singledispatch
def make_store(
    model: Any, folder: Path, budget_bytes: int | None, fingerprint: str, needs_state: bool
) -> PrefixStore:
    """Open the prefix files of a model. Arguments: see PrefixStore. Raises OSError."""
    del model
    return PrefixStore(folder, budget_bytes, fingerprint, needs_state)


def join_contents(
    contents: Sequence[Contents], starts: Sequence[int], ends: Sequence[int]
) -> tuple[CutSlice, State]:
    """Return a function that cuts KV slices from consecutive files, and the last file's state.

    starts, ends: where each file begins and how far it is used, in tokens from the start of the prompt.
    """
    whole = [[from_stored(one) for one in each.kv_slice] for each in contents]

    def cut(start: int, end: int) -> KVSlice:
        parts = []
        for first, last, kv_slice in zip(starts, ends, whole, strict=True):
            low, high = max(start, first), min(end, last)
            if low < high:
                parts.append([array[:, :, low - first : high - first] for array in kv_slice])
        return [mx.concatenate(list(arrays), axis=2) for arrays in zip(*parts, strict=True)]

    return cut, [None if one is None else from_stored(one) for one in contents[-1].state]


def list_folder(folder: Path, known: AbstractSet[str]) -> Listing:
    """List a folder of prefix files, and delete those that are unfinished or no longer readable.

    known: names whose headers need not be read. Raises OSError if the folder cannot be read.
    """
    remove_unfinished(folder, NAME_PATTERN)
    used_at, found = dict[str, float](), []
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            # Links, folders and pipes, which would be waited for, are nobody's prefixes.
            if re.fullmatch(NAME_PATTERN, entry.name) and entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    used_at[entry.name] = entry.stat().st_mtime
                    if used_at[entry.name] > time.time() + USED_S:
                        # The clock was wrong; the file would never be the one used longest ago.
                        used_at[entry.name] = 0.0
    for name in set(used_at) - known:
        path = folder / name
        try:
            header, num_bytes = read_header(path), path.stat().st_size
        except (PrefixFileError, OSError) as fault:
            log.warning("ignored a file in %s: %s", folder, fault)
            if not isinstance(fault.__cause__ or fault, OSError):
                path.unlink(missing_ok=True)
            continue
        found.append(PrefixFile(path, header, None, num_bytes, used_at[name]))
    free_bytes = shutil.disk_usage(folder).free if folder.exists() else 0
    return Listing(known, used_at, found, free_bytes)


def _write(path: Path, header: Header, contents: Contents) -> int:
    # Somebody may have emptied the user's cache meanwhile.
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return write(path, header, contents)


def _with_ancestors(file: PrefixFile | None) -> Iterator[PrefixFile]:
    while file:
        yield file
        file = file.parent
