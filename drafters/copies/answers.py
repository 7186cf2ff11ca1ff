"""Remember which token followed the last 1, 2, 4 and 8 tokens in answers, and how many times in a row.

One table has the answers of all requests. It judges drafts that were copied from elsewhere, token by token,
and guesses the next tokens where there is nothing to copy. Like the ngram-mod table it is lossy: of n-grams
that share a slot the newest stays. Owners have other hashes for the same tokens; 32 bits are compared.
"""

from array import array
from collections.abc import Sequence

import numpy as np

from reprise.drafters.copies.occurrences import LONGEST, Hashes, Ids, TailHashes, hash_all

SIZES = (1, 2, 4, 8)
"""The n of the n-grams: the first of those whose hashes TailHashes has."""

NUM_SLOTS = 1 << 19
"""Slots per n, of 6 bytes each: 12 MB in all."""

_TAG_BITS, _RUN_BITS = 13, 3
_KEY_SHIFT = 64 - (NUM_SLOTS.bit_length() - 1) - _TAG_BITS  # the highest bits of a hash are the best mixed
_TAG, _RUN = (1 << _TAG_BITS) - 1, (1 << _RUN_BITS) - 1
_MAX_RUN = 4  # longer ones are no stronger

NUM_STRENGTHS = 3 * len(SIZES)
"""Strengths of a memory: by n, whether its token came once, 2 or 3, or more times in a row."""

NUM_SUPPORTS = 1 + 2 * NUM_STRENGTHS
"""Values of support(): 0 if nothing is remembered, else 1 + 2 * strength + (1 if the memory agrees)."""

_STRENGTH_OF_RUN = np.array([0, 0, 1, 1, 2, 0, 0, 0], np.int8)
_ROW_STARTS = NUM_SLOTS * np.arange(len(SIZES))[:, None]
_FIRST_SUPPORTS = 1 + 6 * np.arange(len(SIZES))[:, None]


class AnswerTable:
    """The token that last followed each n-gram in answers, and for how many times in a row it did."""

    def __init__(self) -> None:
        self._tokens = np.zeros((len(SIZES), NUM_SLOTS), np.int32)
        # Of each token: its n-gram's tag, then three bits for its run, which is 0 in an empty slot.
        self._marks = np.zeros((len(SIZES), NUM_SLOTS), np.uint16)
        # Single items of a memoryview are read and written three times as fast as those of an array.
        self._rows = [
            (tokens.data, marks.data) for tokens, marks in zip(self._tokens, self._marks, strict=True)
        ]

    def learn(self, hashes: Hashes, token: int, salt: int) -> None:
        """Remember an answer's next token. hashes: of the text before it. salt: the owner's."""
        for (tokens, marks), hash_ in zip(self._rows, hashes, strict=False):
            key = (hash_ ^ salt) >> _KEY_SHIFT
            slot, tag = key >> _TAG_BITS, key & _TAG
            mark = marks[slot]
            if tokens[slot] != token or mark >> _RUN_BITS != tag:
                tokens[slot], marks[slot] = token, tag << _RUN_BITS | 1
            elif mark & _RUN != _MAX_RUN:
                marks[slot] = mark + 1

    def support(self, end: Ids, tokens: Sequence[int], salt: int) -> list[int]:
        """Return what is remembered of the longest known n-gram before each token. See NUM_SUPPORTS.

        end: at least the last LONGEST tokens of the text, or all there are, and at least one.
        """
        before = array("I", (end[-1], *tokens[:-1]))
        hashes = hash_all(before, end[-LONGEST:-1])[: len(SIZES)] ^ np.uint64(salt)
        keys = (hashes >> np.uint64(_KEY_SHIFT)).astype(np.int64)
        slots = (keys >> _TAG_BITS) + _ROW_STARTS
        marks = self._marks.reshape(-1)[slots]
        agrees = self._tokens.reshape(-1)[slots] == np.array(tokens, np.int64)
        found = _FIRST_SUPPORTS + 2 * _STRENGTH_OF_RUN[marks & _RUN] + agrees
        found[(marks >> _RUN_BITS != keys & _TAG) | (marks == 0)] = 0
        # Later rows have larger values, so this is the longest n-gram's.
        best: list[int] = found.max(axis=0).tolist()
        return best

    def guess(self, tail: TailHashes, limit: int, salt: int) -> tuple[list[int], list[int]]:
        """Return up to limit tokens that last followed, and the strength of each memory.

        tail: hashes of the text before them.
        """
        guessed: list[int] = []
        strengths: list[int] = []
        hashes, tail = tail.hashes, tail.copy()
        while len(guessed) < limit:
            for at in range(len(SIZES) - 1, -1, -1):
                tokens, marks = self._rows[at]
                key = (hashes[at] ^ salt) >> _KEY_SHIFT
                mark = marks[key >> _TAG_BITS]
                if mark and mark >> _RUN_BITS == key & _TAG:
                    guessed.append(tokens[key >> _TAG_BITS])
                    strengths.append(3 * at + int(_STRENGTH_OF_RUN[mark & _RUN]))
                    break
            else:
                break
            hashes = tail.append(guessed[-1])
        return guessed, strengths
