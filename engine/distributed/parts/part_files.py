"""Keep one rank's part of the prefix cache in files. Rank 0 decides which prefixes have one.

If any rank lacks its file of a prefix, or has one of other weights, no rank uses that prefix.
"""

import logging
import re
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from reprise.config.whole_file import remove_unfinished
from reprise.engine.kv_cache.prefix_cache import disk_file
from reprise.engine.kv_cache.prefix_cache.disk import join_contents
from reprise.engine.kv_cache.prefix_cache.disk_file import (
    NAME_PATTERN,
    SUFFIX,
    Contents,
    Header,
    PrefixFileError,
)
from reprise.engine.kv_cache.prefix_cache.text_key import TextKey
from reprise.engine.kv_cache.slices import KVSlice, State

log = logging.getLogger("reprise.engine")

Reading = Future[list[Contents]]


class PartFiles:
    """The prefix files of a rank other than rank 0. A thread reads and writes them in the order of the calls.

    folder: this rank's own, made if missing. Raises OSError if it cannot be used.
    fingerprint: identifies this rank's part of the model, and how the model is split.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder, self._fingerprint = folder, fingerprint
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_unfinished(folder, NAME_PATTERN)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefix-files")

    def keep(self, names: Sequence[str]) -> None:
        """Delete the files of this part that are not among the names."""
        kept = set(names)
        for path in self._folder.glob(f"*{SUFFIX}"):
            if path.name in kept:
                continue
            try:
                is_ours = disk_file.read_header(path).fingerprint == self._fingerprint
            except PrefixFileError:
                is_ours = False
            if is_ours:
                path.unlink(missing_ok=True)

    def save(self, name: str, kv_slice: KVSlice, state: State) -> None:
        """Copy the arrays of a KV slice and a state, and start to write them to the file of this name."""
        contents = disk_file.copy_contents(kv_slice, state)
        # Which tokens these are, only rank 0 needs to know.
        header = Header(self._fingerprint, "", 0, TextKey.of([]), bool(state))
        self._thread.submit(_write, self._path(name), header, contents)

    def drop(self, name: str) -> None:
        """Start to delete the file of this name."""
        self._thread.submit(self._path(name).unlink, missing_ok=True)

    def begin_read(self, names: Sequence[str]) -> Reading:
        """Start to read the files of consecutive runs of tokens, in order."""
        return self._thread.submit(self._read, [self._path(name) for name in names])

    def close(self) -> None:
        """Wait until all files are written."""
        self._thread.shutdown()

    def _read(self, paths: Sequence[Path]) -> list[Contents]:
        for path in paths:
            if disk_file.read_header(path).fingerprint != self._fingerprint:
                raise PrefixFileError(f"{path.name} is of other weights")
        return [disk_file.read(path) for path in paths]

    def _path(self, name: str) -> Path:
        # Whatever is sent, it is a file in the folder.
        if not re.fullmatch(NAME_PATTERN, name):
            raise ValueError(f"{name} is no name of a prefix file")
        return self._folder / name


class ReadParts:
    """The contents of the files of consecutive runs of tokens.

    starts, ends: where each file begins and how far it is used, in tokens from the start of the prompt.
    Making it waits for the files, and raises PrefixFileError if one cannot be read.
    """

    def __init__(self, reading: Reading, starts: Sequence[int], ends: Sequence[int]) -> None:
        self.cut, self._state = join_contents(reading.result(), starts, ends)

    def state(self) -> State:
        """Return the state after the last file's last token."""
        return self._state


def _write(path: Path, header: Header, contents: Contents) -> None:
    try:
        disk_file.write(path, header, contents)
    except OSError as fault:
        log.warning("could not write a prefix to %s: %s", path, fault)
