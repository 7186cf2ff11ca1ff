"""The other ranks' side: repeat rank 0's commands in their order."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from reprise.engine.distributed.operations import OPERATIONS
from reprise.engine.distributed.parts.shard import Shard
from reprise.engine.distributed.ranks.errors import RanksLostError

RETURNS_COPIES = frozenset(
    ("cut_slice", "leading", "split_slice", "take_state", "kv_slice", "state", "cut_parts")
)
"""Operations whose results are copies that must not wait for a later forward pass."""

Tell = Callable[[str | None], bool]
"""Tells rank 0 whether the command can be done, and returns whether all ranks can."""


class Replica:
    """Keeps this rank's part of rank 0's caches, rows and slices, under the same numbers.

    tell: sends rank 0 this rank's fault, or None, and returns whether all ranks agree.
    num_done: the number of the last command done. objects: this rank's parts of rank 0's objects, by number.
    """

    def __init__(self, shard: Shard, tell: Tell) -> None:
        self._tell = tell
        self._shard = shard
        shard.agree = self._agree
        self.num_done = 0
        # Rank 0's shard is object 0.
        self.objects: dict[int, Any] = {0: shard}
        self._asks = self._has_disagreed = False

    def do(self, command: Any) -> None:
        """Do one command of rank 0. Raises RanksLostError if it is out of order, or fails only here."""
        number, name, arguments, made, dropped, asks = command
        if number != self.num_done + 1:
            raise RanksLostError(f"command {number} came after command {self.num_done}")
        for one in dropped:
            del self.objects[one]
        self._asks, self._has_disagreed = asks, False
        try:
            result = OPERATIONS[name](*map(self._decode, arguments))
            self._agree(None)
        except Exception as fault:
            if not asks:
                raise RanksLostError(f"it failed at {name}: {fault}") from fault
            if not self._has_disagreed:
                self._disagree(fault)
            result = None
        if made is not None and not self._has_disagreed:
            self.objects[made] = result
        if name in RETURNS_COPIES and result:
            flat: Any = tree_flatten(result)
            mx.async_eval([array for _, array in flat if isinstance(array, mx.array)])
        self.num_done = number

    def close(self) -> None:
        """Wait until all prefix files are written."""
        if self._shard.files:
            self._shard.files.close()

    def _agree(self, fault: Exception | None) -> None:
        if not self._asks:
            if fault is not None:
                raise fault
            return
        if self._has_disagreed:
            return
        if fault is not None:
            self._disagree(fault)
            raise fault
        if not self._tell(None):
            self._has_disagreed = True
            raise RuntimeError("another rank cannot do it")

    def _disagree(self, fault: Exception) -> None:
        self._has_disagreed = True
        self._tell(str(fault) or type(fault).__name__)

    def _decode(self, given: Any) -> Any:
        if isinstance(given, list):
            return [self._decode(one) for one in given]
        if isinstance(given, dict):
            if "object" in given:
                return self.objects[given["object"]]
            return mx.zeros(given["tokens"], mx.int32)
        return given
