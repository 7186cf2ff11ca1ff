"""The file that keeps the texts of finished requests from one run to the next.

Arrays: the tokens of all texts, one after the other (uint32, little endian).
"""

from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from reprise.drafters import checked_file
from reprise.drafters.base import TableFileError
from reprise.drafters.copies.occurrences import Ids

MAGIC = b"reprise history\n"
VERSION = 1

_TOKEN_BYTES = 4
_MAX_TEXTS = 1024  # so that the header stays below its limit: an entry takes up to 48 bytes


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """The file in which the finished texts of one vocabulary are kept.

    vocabulary: its fingerprint. scope: "process" or "api-key". A file with other ones is not loaded.
    """

    path: Path
    vocabulary: str
    scope: str

    def write(self, texts: Sequence[tuple[str, Ids]]) -> int:
        """Write texts, each with its owner; return the size of the file in bytes. Raises TableFileError.

        If the header would be too long, the first texts are left out.
        """
        kept = texts[-_MAX_TEXTS:]
        header = {**self._wanted(), "texts": [[owner, len(tokens)] for owner, tokens in kept]}
        return checked_file.write(
            self.path, MAGIC, header, (np.asarray(tokens).astype("<u4").tobytes() for _, tokens in kept)
        )

    def read(self, max_tokens: int) -> list[tuple[str, Ids]]:
        """Return the texts, each with its owner; a file with more than max_tokens is refused.

        Returns [] if there is no file. Raises TableFileError, also if it is of another vocabulary or scope.
        """
        path = self.path
        if not path.exists():
            return []
        header, arrays = checked_file.read(
            path, MAGIC, "a file of finished requests", max_tokens * _TOKEN_BYTES
        )
        try:
            checked_file.check_header(path, header, self._wanted())
            sizes = [(str(owner), int(size)) for owner, size in header["texts"]]
            if min((size for _, size in sizes), default=0) < 0:
                raise ValueError("a text has a negative length")
            if sum(size for _, size in sizes) * _TOKEN_BYTES != len(arrays):
                raise ValueError("its length does not agree with its header")
        except (ValueError, KeyError, TypeError) as error:
            raise TableFileError(f"cannot load {path}: its contents are invalid ({error})") from error
        tokens = array("I", np.frombuffer(arrays, "<u4").astype(np.uint32).tobytes())
        ends = accumulate(size for _, size in sizes)
        return [(owner, tokens[end - size : end]) for (owner, size), end in zip(sizes, ends, strict=True)]

    def delete(self) -> None:
        """Delete the file, if it exists and can be deleted."""
        with suppress(OSError):
            self.path.unlink()

    def _wanted(self) -> dict[str, object]:
        return {"version": VERSION, "vocabulary": self.vocabulary, "scope": self.scope}
