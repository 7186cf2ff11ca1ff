"""Translate the drafts of a draft model with another vocabulary."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from reprise.engine.text.encoding import (
    find_complete_end,
    find_shared_boundaries,
    find_word_boundaries,
    is_character_boundary,
    token_ends,
    tokens_after,
    valid_utf8_prefix,
)
from reprise.engine.text.tokenizer import Tokenizer
from reprise.engine.text.vocabulary import Vocabulary

UNMATCHED = -1
"""Marks an id without a counterpart."""

IdsByBytes = dict[bytes, list[int]]
"""The ids of each text that is a token."""


class TokenMap:
    """The tokens that a draft model and a target both have, one to one.

    Text tokens are matched by equal bytes. If several ids of a vocabulary have the same bytes, those that its
    tokenizer uses for the text come first, and ids written as bytes last. Special tokens are matched by their
    strings, except for end of answer and beginning of sequence, which match whatever their strings are.
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
        """Match ids that have no counterpart yet, in order."""
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
            (target_specials, all_draft_ids, lambda target_ids, ids: self._match(ids, target_ids)),
        ):
            for token_string, token in specials.items():
                match([token], ids.get(token_string.encode(), []))


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


@dataclass(slots=True)
class TranslationCounts:
    """Counts of one row's drafts by translation result: translated, absorbed or skipped.

    translated: the draft became at least one target token. absorbed: nothing new was left of the draft.
    skipped: the target's tokens cannot express the draft exactly.
    resynchronised: translated or absorbed, but with a shorter prefix, because the draft merged with the
        preceding text.
    """

    translated: int = 0
    absorbed: int = 0
    resynchronised: int = 0
    skipped: int = 0

    def add(self, ids: list[int], drafted: Sequence[int]) -> list[int]:
        """Count a draft as translated, or as absorbed if no ids are left of it. Returns ids."""
        if ids:
            self.translated += 1
        elif drafted:
            self.absorbed += 1
        return ids


@dataclass(frozen=True, slots=True)
class TranslatedText:
    """The committed text in the draft model's ids.

    ids: the whole text's ids, at least one if anything was committed. Read-only, and valid until the next
        call of translate_text().
    num_same: leading ids unchanged since the previous text; caches are rolled back to them.
    num_settled: number of leading ids that later tokens cannot change.
    """

    ids: Sequence[int]
    num_same: int
    num_settled: int


class Translator(Protocol):
    """Translates one row's committed text for the draft model, and its drafts for the target."""

    counts: TranslationCounts

    def translate_text(self, tokens: Sequence[int]) -> TranslatedText:
        """Translate all of the target's committed tokens: those of the previous call, and new ones."""

    def translate_draft(self, drafted: Sequence[int]) -> list[int]:
        """Return the target's ids for tokens drafted after the last text; empty if they cannot be translated.

        The committed tokens and the returned ids together have the same bytes as the committed tokens and a
        prefix of the drafted text.
        """


@dataclass(frozen=True)
class VocabularyPair:
    """The vocabularies of a draft model and a target, and the tokens that they share."""

    draft: Vocabulary
    target: Vocabulary
    token_map: TokenMap
    _draft_ids: dict[int, list[int]] = field(default_factory=dict)

    def to_draft_ids(self, token: int) -> list[int]:
        """Return the draft model's ids for a target token: the same token's id, or else its text's ids.

        A special token that the draft model lacks is encoded as its string, but beginning of sequence is left
        out. Each token is encoded once and cached.
        """
        ids = self._draft_ids.get(token)
        if ids is None:
            known = int(self.token_map.to_draft[token]) if token < self.target.size else UNMATCHED
            # The text "<s>" would mean nothing to a model without that token.
            token_string = "" if token == self.target.bos else self.target.special_strings.get(token)
            text = self.target.to_bytes([token]) if token_string is None else token_string.encode()
            ids = [known] if known != UNMATCHED else self.draft.encode_best_effort(text)[0]
            self._draft_ids[token] = ids
        return ids

    def to_target_ids(self, drafted: Sequence[int]) -> list[int]:
        """Return the target's ids for drafted ids, up to the first token that the target lacks."""
        ids: list[int] = self.token_map.to_target[list(drafted)].tolist()
        return ids[: ids.index(UNMATCHED)] if UNMATCHED in ids else ids

    def split_at_special(self, drafted: Sequence[int]) -> tuple[bytes, list[int]]:
        """Return a draft's text up to its first special token, and the target's id of that token, if any."""
        pieces = self.draft.pieces
        end = next((at for at, token in enumerate(drafted) if not pieces[token]), len(drafted))
        return self.draft.to_bytes(drafted[:end]), self.to_target_ids(drafted[end : end + 1])


SETTLE_TOKENS = 8
"""The settled boundary is moved up each time this many tokens beyond the prefix have followed it."""

WORD_BOUNDARY_TOKENS = 24
"""If there is no word boundary in this many tokens beyond the prefix, any other shared boundary is taken."""

MAX_TAIL_TOKENS = 64
"""With this many tokens after it, the settled boundary moves up even where the vocabularies do not agree."""

MAX_BOUNDARY_TRIES = 4
"""Maximum shared boundaries tried each time the settled boundary is to move."""


class ContextTranslator:
    """Translates one row's text and drafts. The result does not depend on how many tokens come at a time.

    prefix_tokens: p, the number of committed tokens that are encoded again with the text after them.
    """

    def __init__(self, pair: VocabularyPair, prefix_tokens: int) -> None:
        self.counts = TranslationCounts()
        self._pair = pair
        self._draft, self._target = pair.draft, pair.target
        self._prefix_tokens = prefix_tokens
        self._ids = list(pair.draft.opening)
        self._num_settled = len(self._ids)
        self._num_returned = 0
        self._num_translated = 0
        # The text after the settled boundary, and where the target's tokens end in it.
        self._text = b""
        self._ends: list[int] = []
        self._is_exact = True
        self._last_encoded: tuple[bytes, list[int] | None] = b"", []

    def translate_text(self, tokens: Sequence[int]) -> TranslatedText:
        """Re-encode the text after the settled boundary, with the new tokens' text.

        An incomplete character waits for its remaining bytes.
        """
        start = self._num_settled
        new: list[int] = []
        for at in range(self._num_translated, len(tokens)):
            self._add_token(tokens[at], new)
        self._num_translated = len(tokens)
        self._num_settled += len(new)
        tail, self._is_exact = self._encode_best_effort(self._text[: find_complete_end(self._text)])
        if tokens and not self._num_settled and not tail:
            tail = [self._draft.start_id]
        new += tail
        num_same = start + _count_equal(new, self._ids[start:])
        self._ids[num_same:] = new[num_same - start :]
        num_same, self._num_returned = min(num_same, self._num_returned), len(self._ids)
        return TranslatedText(self._ids, num_same, self._num_settled)

    def translate_draft(self, drafted: Sequence[int]) -> list[int]:
        """Encode the drafted text in the target's ids, as a continuation of the last committed tokens.

        The draft ends at the first special token or incomplete character.
        """
        if not drafted:
            return []
        text, special = self._pair.split_at_special(drafted)
        draft_text = valid_utf8_prefix(text)
        # The draft must begin with the bytes of an incomplete character, which the draft model has not read.
        incomplete = self._text[find_complete_end(self._text) :]
        ids: list[int] | None = []
        if not self._is_exact or not draft_text.startswith(incomplete[: len(draft_text)]):
            ids = None
        elif len(draft_text) > len(incomplete):
            ids = self._encode_after_prefix(draft_text[len(incomplete) :])
        if ids is None:
            self.counts.skipped += 1
            return []
        if len(draft_text) == len(text) and (draft_text or not incomplete):
            ids += special
        return self.counts.add(ids, drafted)

    def _add_token(self, token: int, settled: list[int]) -> None:
        """Read one committed token; append the ids that it settles to `settled`."""
        piece = self._target.pieces[token]
        if piece:
            self._text += piece
            self._ends.append(len(self._text))
            num_more = len(self._ends) - self._prefix_tokens
            if num_more >= SETTLE_TOKENS and num_more % SETTLE_TOKENS == 0:
                self._settle(settled)
            return
        # Text after a special token does not need the text before it.
        self._settle_up_to(len(self._text), settled)
        ids = self._pair.to_draft_ids(token)
        # Not a second beginning of sequence.
        if tuple(ids) != self._draft.opening or self._num_settled + len(settled) > len(ids):
            settled += ids

    def _settle(self, settled: list[int]) -> None:
        """Move the settled boundary to where both vocabularies agree, at least p tokens before the end."""
        limit = self._ends[-1 - self._prefix_tokens]
        words = [
            at for at in self._draft.find_word_boundaries(self._text) if at <= limit and at in self._ends
        ]
        if words:
            self._settle_up_to(words[-1], settled)
            return
        if len(self._ends) < self._prefix_tokens + WORD_BOUNDARY_TOKENS:
            return
        text = self._text[: find_complete_end(self._text)]
        ids = self._encode(text)
        if ids is not None:
            pieces = self._draft.pieces
            shared = find_shared_boundaries(text, self._ends, token_ends(ids, pieces), limit)
            for at in islice(shared, MAX_BOUNDARY_TRIES):
                after = tokens_after(ids, pieces, at)
                # Later text is encoded from here: it must get the same ids without the text before.
                if after is not None and self._draft.encode(text[at:]) == after:
                    settled += ids[: len(ids) - len(after)]
                    self._drop_before(at)
                    self._last_encoded = text[at:], after
                    return
        if ids is None or len(self._ends) >= MAX_TAIL_TOKENS:
            at = next(find_shared_boundaries(self._text, self._ends, self._ends, limit), limit)
            self._settle_up_to(at, settled)

    def _settle_up_to(self, boundary: int, settled: list[int]) -> None:
        settled += self._encode_best_effort(self._text[:boundary])[0]
        self._drop_before(boundary)

    def _drop_before(self, boundary: int) -> None:
        self._text = self._text[boundary:]
        self._ends = [end - boundary for end in self._ends if end > boundary]

    def _encode_best_effort(self, text: bytes) -> tuple[list[int], bool]:
        """Return the draft model's ids of a text, and whether their bytes are exactly the text."""
        ids = self._encode(text)
        return (ids, True) if ids is not None else self._draft.encode_best_effort(text)

    def _encode(self, text: bytes) -> list[int] | None:
        """Return the draft model's ids of a text, cached for the last one."""
        if self._last_encoded[0] != text:
            self._last_encoded = text, self._draft.encode(text)
        return self._last_encoded[1]

    def _encode_after_prefix(self, new: bytes) -> list[int] | None:
        """Return the target's ids of text that follows the committed text; None if no token begins there."""
        for num_tried, start in enumerate(self._prefix_starts()):
            prefix = self._text[start:]
            ids = self._target.encode(prefix + new)
            after = None if ids is None else tokens_after(ids, self._target.pieces, len(prefix))
            if after is not None:
                self.counts.resynchronised += num_tried > 0
                return after
        return None

    def _prefix_starts(self) -> list[int]:
        """Yield where a draft's prefix may begin, the longest prefix first.

        The first has p tokens, extended to the beginning of a word. The last is empty, or only an incomplete
        character.
        """
        text = self._text
        complete_end = find_complete_end(text)
        starts = [0, *self._ends]
        first = starts[max(0, len(starts) - 1 - self._prefix_tokens)]
        if self._prefix_tokens:
            first = max((at for at in find_word_boundaries(text) if at <= first), default=0)
        usable = [at for at in starts if at <= complete_end and is_character_boundary(text, at)]
        return [at for at in usable if at >= first] or usable[-1:]


def _count_equal(ids: Sequence[int], others: Sequence[int]) -> int:
    """Count the leading ids that are equal."""
    pairs = enumerate(zip(ids, others, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(ids), len(others)))


class IdentityTranslator:
    """Keeps ids unchanged. An id that the other model lacks is left out of the text, and ends a draft."""

    def __init__(self, num_draft_ids: int, num_target_ids: int) -> None:
        self.counts = TranslationCounts()
        self._num_draft_ids = num_draft_ids
        self._num_target_ids = num_target_ids
        self._num_translated = 0
        self._num_returned = 0
        self._filtered: list[int] | None = None

    def translate_text(self, tokens: Sequence[int]) -> TranslatedText:
        """Return the committed tokens themselves if the draft model has all of them, else a filtered copy."""
        new = tokens[self._num_translated :]
        if self._filtered is None and any(token >= self._num_draft_ids for token in new):
            self._filtered = list(tokens[: self._num_translated])
        if self._filtered is not None:
            self._filtered += [token for token in new if token < self._num_draft_ids]
            if tokens and not self._filtered:
                self._filtered.append(0)
        self._num_translated = len(tokens)
        ids = tokens if self._filtered is None else self._filtered
        num_same, self._num_returned = self._num_returned, len(ids)
        return TranslatedText(ids, num_same, len(ids))

    def translate_draft(self, drafted: Sequence[int]) -> list[int]:
        """Return the drafted ids up to the first that the target lacks."""
        foreign = (at for at, token in enumerate(drafted) if token >= self._num_target_ids)
        return self.counts.add(list(drafted[: next(foreign, len(drafted))]), drafted)


class SharedTranslator:
    """Maps tokens to equal tokens, without encoding the text.

    The draft model may draft only tokens that both models have. It reads the text as the target's tokens
    split it: a target token that it lacks is replaced by its own tokens for the same bytes.
    """

    def __init__(self, pair: VocabularyPair) -> None:
        self.counts = TranslationCounts()
        self._pair = pair
        self._ids = list(pair.draft.opening)
        self._num_translated = 0
        self._num_returned = 0

    def translate_text(self, tokens: Sequence[int]) -> TranslatedText:
        """Append the draft model's ids of the new tokens; tokens for which it has none are left out."""
        new = tokens[self._num_translated :]
        # Not a second beginning of sequence.
        if not self._num_translated and new and self._pair.to_draft_ids(new[0]) == self._ids:
            new = new[1:]
        for token in new:
            self._ids += self._pair.to_draft_ids(token)
        self._num_translated = len(tokens)
        if tokens and not self._ids:
            self._ids.append(self._pair.draft.start_id)
        num_same, self._num_returned = self._num_returned, len(self._ids)
        return TranslatedText(self._ids, num_same, len(self._ids))

    def translate_draft(self, drafted: Sequence[int]) -> list[int]:
        """Return the target's ids of the drafted ones, up to the first that the target lacks."""
        return self.counts.add(self._pair.to_target_ids(drafted), drafted)


Strategy = Literal["context", "shared", "none"]
PREFIX_TOKENS = 5
"""Default number of committed tokens that are encoded again in front of drafted text."""


class Translation:
    """The translation between one draft model and one target; makes a translator for every row.

    strategy: the strategy in use. pair: the two vocabularies; None for "none", which does not use text.
    """

    def __init__(
        self,
        strategy: Strategy,
        pair: VocabularyPair | None,
        num_draft_ids: int,
        num_target_ids: int,
        prefix_tokens: int = PREFIX_TOKENS,
    ) -> None:
        self.strategy = strategy
        self.pair = pair
        self.num_draft_ids = num_draft_ids
        self.num_target_ids = num_target_ids
        self.prefix_tokens = prefix_tokens

    @classmethod
    def between(
        cls,
        draft: Tokenizer,
        target: Tokenizer,
        strategy: Strategy | Literal["auto"] = "auto",
        prefix_tokens: int = PREFIX_TOKENS,
    ) -> "Translation":
        """Make the translation for two tokenizers.

        strategy: "auto" is "none" if their vocabularies are equal, else "context".
        Raises VocabularyError if text must be translated and the bytes of a tokenizer's tokens are unknown.
        """
        if strategy == "auto":
            strategy = "none" if draft.fingerprint == target.fingerprint else "context"
        pair = None
        if strategy != "none":
            vocabularies = Vocabulary(draft), Vocabulary(target)
            pair = VocabularyPair(*vocabularies, TokenMap(*vocabularies))
        return cls(strategy, pair, draft.vocab_size, target.vocab_size, prefix_tokens)

    def make_translator(self) -> Translator:
        """Make a translator for a new row."""
        if self.strategy == "none":
            return IdentityTranslator(self.num_draft_ids, self.num_target_ids)
        assert self.pair is not None
        if self.strategy == "shared":
            return SharedTranslator(self.pair)
        return ContextTranslator(self.pair, self.prefix_tokens)
