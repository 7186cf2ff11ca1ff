"""Keep the most recently used values, up to a number of bytes."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")


class BoundedCache(Generic[ValueT]):
    """The most recently used values by their keys. Any thread may use it.

    size_of: returns the bytes of a value. limit_bytes: the most bytes that all values may take.
    num_bytes: the bytes that they take now.
    """

    def __init__(self, size_of: Callable[[ValueT], int], limit_bytes: int = 0) -> None:
        self.limit_bytes, self.num_bytes = limit_bytes, 0
        self._size_of = size_of
        self._held: OrderedDict[Hashable, ValueT] = OrderedDict()
        self._lock = threading.RLock()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._held

    def get(self, key: Hashable) -> ValueT | None:
        """Return the value of a key, and keep it as the last one used; None if the key has no value."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
            return self._held.get(key)

    def take(self, key: Hashable) -> ValueT | None:
        """Remove the value of a key and return it; None if the key has no value."""
        with self._lock:
            value = self._held.pop(key, None)
            self.num_bytes -= 0 if value is None else self._size_of(value)
            return value

    def put(self, key: Hashable, value: ValueT) -> None:
        """Keep a value, and drop the least recently used values that exceed the limit."""
        with self._lock:
            self.take(key)
            self._held[key] = value
            self.num_bytes += self._size_of(value)
            self.shrink_to(self.limit_bytes)

    def shrink_to(self, num_bytes: int) -> None:
        """Drop the least recently used values until all take at most num_bytes."""
        with self._lock:
            while self._held and self.num_bytes > num_bytes:
                self.num_bytes -= self._size_of(self._held.popitem(last=False)[1])
