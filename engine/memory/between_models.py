"""Divide the machine's memory among the models that are loaded.

Each may use what the others do not hold. A model holds its weights, its cached prefixes and what its running
requests take now, but at least what the oldest of them takes at its very end. So whatever was admitted can
end, whatever the others do; its model's other requests give way to it, as with one model.
"""

from collections.abc import Callable
from typing import Protocol


class Holder(Protocol):
    """A model that holds memory. weight_bytes: of its weights. shared: None if it is alone."""

    weight_bytes: int
    shared: "SharedMemory | None"

    @property
    def held_bytes(self) -> int:
        """Bytes of a model's memory, its weights included."""

    def give_up(self, num_bytes: int) -> bool:
        """Drop cached prefixes of at least num_bytes, or all; return whether any were dropped."""


class SharedMemory:
    """Divides the machine's memory among models. Used by the engine's thread only.

    limit_bytes: for all of them together.
    unload: unloads a model that answers nothing; returns False if there is none. It is told who needs memory,
        None for a model that is to be loaded.
    loading_bytes: reserved for the model that is being loaded.
    """

    def __init__(self, limit_bytes: int, unload: Callable[[Holder | None], bool]) -> None:
        self.limit_bytes = limit_bytes
        self.loading_bytes = 0
        self.holders: list[Holder] = []
        self._unload = unload

    def beside(self, holder: Holder | None) -> int:
        """Return the bytes that all other models hold."""
        return self.loading_bytes + sum(one.held_bytes for one in self.holders if one is not holder)

    def make_room(self, num_bytes: int, holder: Holder | None = None) -> bool:
        """Free memory of other models until num_bytes are left; return whether they are.

        num_bytes: besides the holder's weights. holder: who needs them; None for a model to be loaded.
        First cached prefixes are dropped, then models unloaded.
        """
        own_bytes = holder.weight_bytes if holder else 0
        while (lacking := num_bytes + own_bytes + self.beside(holder) - self.limit_bytes) > 0:
            others = [one for one in self.holders if one is not holder]
            if not any(one.give_up(lacking) for one in others) and not self._unload(holder):
                return False
        return True
