"""Divide the machine's memory among the models that are loaded.

Each may use the memory that the others do not hold. A model holds its weights, its cached prefixes and the
memory that its running requests take now, but at least what the oldest request takes at its very end. So the
oldest request can always end, whatever other models do: its own model's other requests give way to it.
"""

from collections.abc import Callable
from typing import Protocol


class Holder(Protocol):
    """A loaded model, as one that holds memory. shared: the memory of all models; None if it is alone."""

    weight_bytes: int
    shared: "SharedMemory | None"

    @property
    def held_bytes(self) -> int:
        """Bytes of a model's memory, its weights included."""

    def give_up(self, num_bytes: int) -> bool:
        """Drop cached prefixes of at least num_bytes, or all; return whether any were dropped."""


class SharedMemory:
    """Divides the machine's memory among models. Used by the engine's thread only.

    limit_bytes: the memory for all models together.
    unload: unloads an idle model; returns False if there is none. Its argument: the model that needs memory,
        None for a model that is to be loaded.
    loading_bytes: bytes reserved for the model that is being loaded.
    """

    def __init__(self, limit_bytes: int, unload: Callable[[Holder | None], bool]) -> None:
        self.limit_bytes = limit_bytes
        self.loading_bytes = 0
        self.holders: list[Holder] = []
        self._unload = unload

    def beside(self, holder: Holder | None) -> int:
        """Return the bytes that all models but the holder hold, a loading model included."""
        return self.loading_bytes + sum(one.held_bytes for one in self.holders if one is not holder)

    def make_room(self, num_bytes: int, holder: Holder | None = None) -> bool:
        """Free memory of other models until num_bytes are left for the holder; return whether they are.

        num_bytes: those besides the holder's weights. holder: None for a model to be loaded.
        Cached prefixes are dropped first, then idle models are unloaded.
        """
        own_bytes = holder.weight_bytes if holder else 0
        while (lacking := num_bytes + own_bytes + self.beside(holder) - self.limit_bytes) > 0:
            others = [one for one in self.holders if one is not holder]
            if not any(one.give_up(lacking) for one in others) and not self._unload(holder):
                return False
        return True
