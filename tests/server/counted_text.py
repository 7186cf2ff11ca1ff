"""Text that counts the characters that operations on it copy or compare, to find quadratic work."""

from typing import Any, SupportsIndex


class CountedText(str):
    """A str whose copies count too. num_touched: characters of all operations on all counted texts."""

    num_touched = 0
    __slots__ = ()

    def __add__(self, other: str) -> "CountedText":
        return self._counted(super().__add__(other))

    def __radd__(self, other: str) -> "CountedText":
        return self._counted(str.__add__(other, self))

    def __getitem__(self, key: SupportsIndex | slice) -> "CountedText":
        return self._counted(super().__getitem__(key))

    def lstrip(self, *given: Any) -> "CountedText":
        return self._counted(super().lstrip(*given), len(self))

    def rstrip(self, *given: Any) -> "CountedText":
        return self._counted(super().rstrip(*given), len(self))

    def strip(self, *given: Any) -> "CountedText":
        return self._counted(super().strip(*given), len(self))

    def find(self, *given: Any) -> int:
        CountedText.num_touched += len(self)
        return super().find(*given)

    def startswith(self, prefix: Any, *given: Any) -> bool:
        CountedText.num_touched += len(prefix)
        return super().startswith(prefix, *given)

    @staticmethod
    def _counted(text: str, num_touched: int = 0) -> "CountedText":
        CountedText.num_touched += num_touched or len(text)
        return CountedText(text)
