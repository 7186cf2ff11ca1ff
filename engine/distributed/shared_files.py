"""Prefix files of a model on several machines: all ranks keep, read and delete theirs as rank 0 does."""

import hashlib
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

from reprise.engine.distributed.leader import Handle, Leader
from reprise.engine.distributed.mirrored_model import SharedModel, as_operation, make_shared
from reprise.engine.kv_cache.buffers import KVSlice, State
from reprise.engine.kv_cache.prefix_cache.disk import (
    Contents,
    Loading,
    PrefixFile,
    PrefixStore,
    join_contents,
    make_store,
)
from reprise.engine.kv_cache.prefix_cache.text_key import Tokens
from reprise.engine.kv_cache.prefix_cache.trie import CutSlice

log = logging.getLogger("reprise.engine")


class _OnOthers:
    """Something that only the other ranks keep, by its number."""

    def __init__(self, leader: Leader) -> None:
        self.handle: Handle = leader.new_handle()


class SharedPrefixStore(PrefixStore):
    """The prefix files of rank 0, which tells the other ranks what to do with theirs."""

    def __init__(
        self, model: SharedModel, folder: Path, budget_bytes: int, fingerprint: str, needs_state: bool
    ) -> None:
        self._model, self._is_open, self._is_shared = model, False, True
        # Another split has other parts.
        whole = hashlib.sha256(f"{fingerprint} {model.shard.place}".encode()).hexdigest()
        super().__init__(folder, budget_bytes, whole, needs_state)
        names = list(self._index.files)
        try:
            self._tell("keep_parts", names, asks=True)
        except RuntimeError as fault:
            raise OSError(str(fault)) from fault
        self._is_open = True

    def sibling(self, part: str, needs_state: bool) -> "SharedPrefixStore":
        """Return the store of a head, which is on rank 0 only: other ranks keep no files of it."""
        other = super().sibling(part, needs_state)
        assert isinstance(other, SharedPrefixStore)
        other._is_shared = False
        return other

    def start_load(self, prompt: Tokens) -> Loading:
        """Start reading, on all ranks, the files of the prefix that match() finds."""
        loading = super().start_load(prompt)
        if not self._is_shared:
            return loading
        self._tell("begin_parts", [file.path.name for file in loading.files], makes=True)
        return replace(loading, others=_OnOthers(self._model.leader))

    def finish_load(self, loading: Loading) -> tuple[CutSlice, State] | None:
        """Wait for a load on all ranks; see PrefixStore.finish_load()."""
        if not self._is_shared:
            return super().finish_load(loading)
        contents = self._contents(loading)
        if contents is None:
            return None
        cut, state = join_contents(contents, loading.starts, loading.ends)
        leader = self._model.leader
        try:
            leader.do(
                "join_parts", _nothing, loading.others, loading.starts, loading.ends, makes=True, asks=True
            )
        except RuntimeError as fault:
            log.warning("dropped a saved prefix that another rank cannot read: %s", fault)
            self._forget(loading.files[0])
            return None
        parts = _OnOthers(leader)
        shared_cut = partial(make_shared, leader, "cut_parts", as_operation(cut), parts)
        if not self._needs_state:
            return shared_cut, []
        return shared_cut, make_shared(leader, "state_of_parts", lambda _: state, parts)

    def _contents_of(self, name: str, kv_slice: KVSlice, state: State) -> Contents:
        contents_of = super()._contents_of
        if not self._is_shared:
            return contents_of(name, kv_slice, state)
        contents: Contents = self._model.leader.do(
            "save_part", lambda _, *given: contents_of(*given), self._model, name, kv_slice, state
        )
        return contents

    def _forget(self, file: PrefixFile) -> None:
        is_known = file.path.name in self._index.files
        super()._forget(file)
        if is_known and self._is_open:
            self._tell("drop_part", file.path.name)

    def _tell(self, name: str, *given: object, makes: bool = False, asks: bool = False) -> None:
        self._model.leader.do(name, _nothing, self._model, *given, makes=makes, asks=asks)


def _nothing(*_: object) -> None:
    """Do nothing here: rank 0 has files of its own."""


make_store.register(SharedModel, SharedPrefixStore)
