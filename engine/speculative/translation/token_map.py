"""Map the tokens that two vocabularies share."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from reprise.engine.text.vocabulary import Vocabulary

UNMATCHED = -1
"""Marks an id without a counterpart."""

IdsByBytes = dict[bytes, list[int]]
"""The ids of each text that is a token."""


class TokenMap:
    """The tokens that a draft model and a target both have, one to one.

    Text tokens are matched by equal bytes. If several ids of a vocabulary have the same bytes, those that its
    tokenizer uses for the text come first, and ids written as bytes last. Special tokens are matched by their
    token strings, except for the end of an answer and the beginning of sequence: these match whatever their
    token strings are.
    """

    to_target: NDArray[np.int32]
    """(draft size,) the target's id for each id of the draft model, UNMATCHED if there is none."""
    to_draft: NDArray[np.int32]
    """(target size,) the draft model's id for each id of the target, UNMATCHED if there is none."""

    def __init__(self, draft: Vocabulary, target: Vocabulary) -> None:
        self.to_target = np.full(draft.size, UNMATCHED, np.int32)
        self.to_draft = np.full(target.size, UNMATCHED, np.int32)
        all_draft_ids, all_target_ids = _ids_by_bytes(draft), _ids_by_bytes(target)
        for piece, draft_ids in all_draft_ids.items():
            if target_ids := all_target_ids.get(piece):
                self._match(
                    _preferred_first(draft, piece, draft_ids), _preferred_first(target, piece, target_ids)
                )
        self._match_specials(draft, target, all_draft_ids, all_target_ids)

    @property
    def num_shared(self) -> int:
        """The number of tokens that both models have."""
        return int(np.count_nonzero(self.to_target != UNMATCHED))

    def _match(self, draft_ids: Iterable[int], target_ids: Iterable[int]) -> None:
        """Match ids that have no counterpart yet, in their order."""
        free = [token for token in target_ids if self.to_draft[token] == UNMATCHED]
        for draft_id, target_id in zip(
            (token for token in draft_ids if self.to_target[token] == UNMATCHED), free, strict=False
        ):
            self.to_target[draft_id] = target_id
            self.to_draft[target_id] = draft_id

    def _match_specials(
        self, draft: Vocabulary, target: Vocabulary, all_draft_ids: IdsByBytes, all_target_ids: IdsByBytes
    ) -> None:
        draft_specials, target_specials = _specials_by_string(draft), _specials_by_string(target)
        both = [token_string for token_string in draft_specials if token_string in target_specials]
        # First only those that end an answer for both or for neither: a special that ends answers for one
        # side alone would otherwise take the place of the other side's end token.
        for token_string in both:
            draft_id, target_id = draft_specials[token_string], target_specials[token_string]
            if (draft_id in draft.eos) == (target_id in target.eos):
                self._match([draft_id], [target_id])
        self._match(draft.eos, target.eos)
        if draft.bos is not None and target.bos is not None and draft.bos not in draft.eos:
            self._match([draft.bos], [target.bos])
        for token_string in both:
            self._match([draft_specials[token_string]], [target_specials[token_string]])
        # A special of one vocabulary may be ordinary text in the other, such as reasoning markers.
        for specials, ids, match in (
            (draft_specials, all_target_ids, self._match),
            (target_specials, all_draft_ids, self._match_reversed),
        ):
            for token_string, token in specials.items():
                match([token], ids.get(token_string.encode(), []))

    def _match_reversed(self, target_ids: Sequence[int], draft_ids: Sequence[int]) -> None:
        self._match(draft_ids, target_ids)


def _ids_by_bytes(vocabulary: Vocabulary) -> IdsByBytes:
    ids: IdsByBytes = {}
    for token, piece in enumerate(vocabulary.pieces):
        if piece:
            ids.setdefault(piece, []).append(token)
    return ids


def _specials_by_string(vocabulary: Vocabulary) -> dict[str, int]:
    return {token_string: token for token, token_string in vocabulary.special_strings.items()}


def _preferred_first(vocabulary: Vocabulary, piece: bytes, ids: list[int]) -> list[int]:
    """Sort ids with the same bytes: first the one that the tokenizer uses, last those written as bytes."""
    if len(ids) == 1:
        return ids
    preferred = vocabulary.encode(piece)
    return sorted(ids, key=lambda token: (preferred != [token], token in vocabulary.byte_fallback_ids, token))
