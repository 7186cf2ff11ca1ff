"""Caches of finished rows, kept so that a prompt which begins like one of them need not be prefilled.

Entries are keyed by the tokens that they really hold, evaluated, and share no buffer with a row.
"""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from mlx_lm.models.cache import KVCache

from engine.rows import Caches, settle

MAX_ENTRIES = 256
"""Every entry is looked at for every prompt, so there must not be thousands."""

Tokens = tuple[int, ...]


class PrefixCache:
    """Least recently used goes first once more than budget_bytes are kept."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[Tokens, tuple[np.ndarray, Caches]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, tokens: Sequence[int], caches: Caches) -> None:
        """Keep caches that hold exactly these tokens, unless an entry covers them; drop those they cover."""
        size = sum(cache.nbytes for cache in caches)
        if not tokens or size > self.budget_bytes:
            return
        settle(caches)
        added = np.asarray(tokens, np.int64)
        for key, (kept, _) in list(self._entries.items()):
            shared = _shared(kept, added)
            if shared == len(kept):
                self._drop(key)
            elif shared == len(added):
                return
        self._entries[tuple(tokens)] = (added, caches)
        self.num_bytes += size
        while self.num_bytes > self.budget_bytes or len(self._entries) > MAX_ENTRIES:
            self._drop(next(iter(self._entries)))

    def find(self, prompt: Sequence[int]) -> tuple[Caches, int] | None:
        """Fresh caches for the longest kept beginning of prompt, and its length in tokens.

        The last token of the prompt is never included: its logits are still to be computed.
        """
        wanted = np.asarray(prompt, np.int64)[:-1]
        best, length = None, 0
        for key, (kept, _) in self._entries.items():
            if (shared := _shared(kept, wanted)) > length:
                best, length = key, shared
        if best is None:
            return None
        self._entries.move_to_end(best)
        return [_beginning(cache, length) for cache in self._entries[best][1]], length

    def clear(self) -> None:
        """Drop everything."""
        self._entries.clear()
        self.num_bytes = 0

    def _drop(self, key: Tokens) -> None:
        _, caches = self._entries.pop(key)
        self.num_bytes -= sum(cache.nbytes for cache in caches)


def _shared(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading tokens agree."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def _beginning(cache: KVCache, length: int) -> KVCache:
    """The first length tokens. Its buffer is full, so the first write makes a new one."""
    assert cache.keys is not None
    assert cache.values is not None
    part = KVCache()
    part.keys, part.values = cache.keys[..., :length, :], cache.values[..., :length, :]
    part.offset = length
    return part
