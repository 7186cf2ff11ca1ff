"""Store prefixes in files, the second tier of the prefix cache, so that they survive a restart.

The index belongs to the engine's thread. A separate thread reads and writes the files, one after the other in
the order requested, so a prefix can be loaded as soon as save() has returned.
"""

import hashlib
import logging
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from functools import singledispatch
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from reprise.config.atomic_files import remove_unfinished, unfinished_path, write_whole
from reprise.engine.kv_cache.buffers import KVSlice, State, num_bytes
from reprise.engine.kv_cache.prefix_cache.text_key import TextKey, Tokens
from reprise.engine.kv_cache.prefix_cache.trie import CutSlice

BLOCK_WORDS = 16 * 2**20
"""32-bit words that one sum covers."""


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
    data = mx.contiguous(array).reshape(-1).view(mx.uint8)
    data = mx.pad(data, (0, -data.size % 4)).view(mx.uint32)
    sums = []
    for start in range(0, data.size, BLOCK_WORDS):
        block = data[start : start + BLOCK_WORDS]
        # Multiplying by an odd number is invertible, so a change of any single word changes the sum.
        sums.append((block * (2 * mx.arange(block.size, dtype=mx.uint32) + 1)).sum())
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

HEADER_BYTES = 1024
"""Estimated bytes of a file besides its arrays."""

MAX_TURNED_BYTES = 64 * 2**20
"""Bytes that one call of advance_load() turns into MLX's arrays, and one array more."""

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

    When the files exceed the budget, the one with the highest product of bytes per token and seconds since
    its last use is deleted first. Without state all tokens take equal bytes, so that is the least recently
    used.

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
        now = time.time()
        for one in files:
            one.used_at = now
        future = self._thread.submit(_read_all, [one.path for one in files], now)
        return Loading(files, ends, future)

    def advance_load(self, loading: Loading) -> bool:
        """Convert the next array that was read to MLX; return whether any is left.

        It takes some hundredths of a second at most, while finish_load() takes tenths for a gigabyte.
        """
        num_left = MAX_TURNED_BYTES
        for each in loading.future.result():
            if isinstance(each, Exception):
                return False
            for arrays in (each.kv_slice, each.state):
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
        for file, each in zip(loading.files, loading.future.result(), strict=True):
            if isinstance(each, Exception):
                log.warning("dropped a saved prefix that cannot be read: %s", each)
                self._forget(file)
                return None
            contents.append(each)
        return contents

    def save(self, tokens: Tokens, cut: CutSlice, take_state: Callable[[], State]) -> None:
        """Start writing a file with the tokens that are in no file yet.

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
        contents = self._contents_of(name, kv_slice, state)
        file = PrefixFile(self._folder / name, header, parent, size, time.time())
        self._add(file)
        self._index.writing.append((file, self._thread.submit(_write, file.path, header, contents)))
        self._shrink()

    def _contents_of(self, name: str, kv_slice: KVSlice, state: State) -> Contents:  # noqa: ARG002 - for others
        """Return what a file of this name will hold."""
        return to_contents(kv_slice, state)

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
                header, stat = read_header(path), path.stat()
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
        """Return the file that matches the most leading tokens, and their number; (None, 0) if none does.

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


def _write(path: Path, header: Header, contents: Contents) -> int:
    remove_unfinished(path.parent, NAME_PATTERN)
    return write(path, header, contents)


def _read_all(paths: list[Path], used_at: float) -> list[Contents | Exception]:
    found: list[Contents | Exception] = []
    for path in paths:
        try:
            os.utime(path, (used_at, used_at))
            found.append(read(path))
        except Exception as fault:
            found.append(fault)
    return found


def _with_ancestors(file: PrefixFile | None) -> Iterator[PrefixFile]:
    while file:
        yield file
        file = file.parent
