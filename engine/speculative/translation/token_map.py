"""Which tokens of two vocabularies are one and the same."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.model.vocabulary import Vocabulary

UNMATCHED = -1
"""Stands for an id without a counterpart."""


class TokenMap:
    """The tokens that a draft model and a target both have, one to one.

    Text is matched by equal bytes; where several ids of a vocabulary have them, those that its tokenizer
    makes of the text come first, and ids written as bytes last. Specials are matched by their spelling, but
    for the ends of an answer and the beginning of a text: those are one, however they are written.
    """

    to_target: NDArray[np.int32]
    """(draft size,) the target's id for every id of the draft model, UNMATCHED where there is none."""
    to_draft: NDArray[np.int32]
    """(target size,) the draft model's id for every id of the target, UNMATCHED where there is none."""

    def __init__(self, draft: Vocabulary, target: Vocabulary) -> None:
        self.to_target = np.full(draft.size, UNMATCHED, np.int32)
        self.to_draft = np.full(target.size, UNMATCHED, np.int32)
        theirs = _by_bytes(target)
        for piece, ours in _by_bytes(draft).items():
            if piece in theirs:
                self._pair(_in_order(draft, piece, ours), _in_order(target, piece, theirs[piece]))
        self._pair_specials(draft, target)

    @property
    def num_shared(self) -> int:
        """How many tokens both have."""
        return int(np.count_nonzero(self.to_target != UNMATCHED))

    def _pair(self, ours: Iterable[int], theirs: Iterable[int]) -> None:
        """Join ids that have no counterpart yet, in their order."""
        free = [token for token in theirs if self.to_draft[token] == UNMATCHED]
        for token, other in zip(
            (token for token in ours if self.to_target[token] == UNMATCHED), free, strict=False
        ):
            self.to_target[token] = other
            self.to_draft[other] = token

    def _pair_specials(self, draft: Vocabulary, target: Vocabulary) -> None:
        ours, theirs = _by_spelling(draft), _by_spelling(target)
        both = [spelling for spelling in ours if spelling in theirs]
        # An end that ends nothing for the other side would hide the other side's own.
        for spelling in both:
            if (ours[spelling] in draft.eos) == (theirs[spelling] in target.eos):
                self._pair([ours[spelling]], [theirs[spelling]])
        self._pair(draft.eos, target.eos)
        if draft.bos is not None and target.bos is not None and draft.bos not in draft.eos:
            self._pair([draft.bos], [target.bos])
        for spelling in both:
            self._pair([ours[spelling]], [theirs[spelling]])
        # What is a special to one may be a token of text to the other, as markers of thinking are.
        for special, text, joins in ((ours, target, self._pair), (theirs, draft, self._pair_back)):
            ids = _by_bytes(text)
            for spelling, token in special.items():
                joins([token], ids.get(spelling.encode(), []))

    def _pair_back(self, theirs: Sequence[int], ours: Sequence[int]) -> None:
        self._pair(ours, theirs)


def _by_bytes(vocabulary: Vocabulary) -> dict[bytes, list[int]]:
    ids: dict[bytes, list[int]] = defaultdict(list)
    for token, piece in enumerate(vocabulary.pieces):
        if piece:
            ids[piece].append(token)
    return ids


def _by_spelling(vocabulary: Vocabulary) -> dict[str, int]:
    return {spelling: token for token, spelling in vocabulary.special_strings.items()}


def _in_order(vocabulary: Vocabulary, piece: bytes, ids: list[int]) -> list[int]:
    """Ids of one text, the one that the tokenizer says first."""
    if len(ids) == 1:
        return ids
    said = vocabulary.encode(piece)
    return sorted(ids, key=lambda token: (said != [token], token in vocabulary.byte_fallback_ids, token))
