"""Identify texts by their token ids, and the digests of their images. Loads no MLX."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

import numpy as np

Pictures = tuple[tuple[int, bytes], ...]
"""Each image's first token index and digest."""

Tokens = Union[Sequence[int], np.ndarray, "TextKey"]
"""Token ids. A text with images is a TextKey."""


@dataclass(frozen=True, slots=True)
class TextKey:
    """A text's key for comparison with other texts.

    ids: (n,) int32. An image's ids are 31 bits of its digest each, so two images may share some.
    pictures: images that begin in the text.
    """

    ids: np.ndarray
    pictures: Pictures = ()

    @classmethod
    def of(cls, tokens: Tokens) -> "TextKey":
        """Return the key of a text. An array of int32 is used as it is."""
        return tokens if isinstance(tokens, TextKey) else cls(np.asarray(tokens, np.int32))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> "TextKey":
        start, end, _ = part.indices(len(self.ids))
        pictures = tuple((at - start, digest) for at, digest in self.pictures if start <= at < end)
        return TextKey(self.ids[start:end], pictures)

    @property
    def first(self) -> tuple[int, bytes]:
        """The first id, and the digest of the image that begins there; b"" if none does."""
        begins_here = self.pictures and self.pictures[0][0] == 0
        return int(self.ids[0]), self.pictures[0][1] if begins_here else b""

    def count_equal(self, other: "TextKey") -> int:
        """Count the leading tokens that two texts share: equal ids, and equal images that begin there."""
        length = min(len(self.ids), len(other.ids))
        different = self.ids[:length] != other.ids[:length]
        num_equal = int(different.argmax()) if different.any() else length
        return min([num_equal, *(at for at, _ in set(self.pictures) ^ set(other.pictures))])

    def tobytes(self) -> bytes:
        """Return bytes that identify the text; without images, those of the ids."""
        return self.ids.tobytes() + (repr(self.pictures).encode() if self.pictures else b"")
