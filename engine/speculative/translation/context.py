"""Translation by text in its context: what is read and what is drafted is encoded anew behind known text.

There: the target's text behind the *settled edge* is encoded by the draft model's tokenizer. The edge moves
up behind the end, to where both vocabularies agree, so that no step costs more in a longer text.
Back: the last committed tokens and the drafted text behind them are encoded by the target's tokenizer; what
stands behind the committed text is the proposal, if a token begins there.
"""

from collections.abc import Sequence
from itertools import islice

from engine.model.text_boundaries import (
    find_shared_boundaries,
    find_word_boundaries,
    is_character_boundary,
    token_ends,
    tokens_after,
    valid_utf8_prefix,
)
from engine.model.text_boundaries import find_complete_end
from engine.speculative.translation.translator import TranslatedText, TranslationCounts, VocabularyPair, count

SETTLE_TOKENS = 8
"""The settled edge moves up whenever so many tokens more than the prefix have come behind it."""

WORD_TOKENS = 24
"""Tokens behind the prefix that wait for a word edge; where there is none, another edge does."""

LONGEST_TAIL = 64
"""Tokens behind the settled edge with which it moves up, whether the vocabularies agree there or not."""

EDGE_TRIES = 4


class ContextTranslator:
    """One row's translation; a reading depends on the committed tokens alone, not on when they came.

    prefix_tokens: p, so many committed tokens are encoded again with whatever comes behind them.
    """

    def __init__(self, pair: VocabularyPair, prefix_tokens: int) -> None:
        self.counts = TranslationCounts()
        self._pair = pair
        self._draft, self._target = pair.draft, pair.target
        self._prefix_tokens = prefix_tokens
        self._ids = list(pair.draft.opening)
        self._num_settled = len(self._ids)
        self._num_given = 0
        self._num_read = 0
        # The text behind the settled edge, and where the target's tokens end in it.
        self._text = b""
        self._ends: list[int] = []
        self._is_exact = True
        self._encoded: tuple[bytes, list[int] | None] = b"", []

    def translate_text(self, tokens: Sequence[int]) -> TranslatedText:
        """Encode the text behind the settled edge anew, with that of the new tokens.

        A character that is incomplete waits for its rest.
        """
        start = self._num_settled
        fresh: list[int] = []
        for at in range(self._num_read, len(tokens)):
            self._take(tokens[at], fresh)
        self._num_read = len(tokens)
        self._num_settled += len(fresh)
        tail, self._is_exact = self._spell(self._text[: find_complete_end(self._text)])
        if tokens and not self._num_settled and not tail:
            tail = [self._draft.start_id]
        fresh += tail
        num_same = start + _num_equal(fresh, self._ids[start:])
        self._ids[num_same:] = fresh[num_same - start :]
        num_same, self._num_given = min(num_same, self._num_given), len(self._ids)
        return TranslatedText(self._ids, num_same, self._num_settled)

    def translate_draft(self, drafted: Sequence[int]) -> list[int]:
        """Encode the drafted text behind the last tokens, up to a special or an incomplete character."""
        if not drafted:
            return []
        text, special = self._pair.split_at_special(drafted)
        said = valid_utf8_prefix(text)
        pending = self._text[find_complete_end(self._text) :]
        ids: list[int] | None = []
        if not self._is_exact or not said.startswith(pending[: len(said)]):
            ids = None
        elif len(said) > len(pending):
            ids = self._encode_behind(said[len(pending) :])
        if ids is None:
            self.counts.skipped += 1
            return []
        if len(said) == len(text) and (said or not pending):
            ids += special
        return count(self.counts, ids, drafted)

    def _take(self, token: int, fresh: list[int]) -> None:
        """Read one committed token; ids that are settled by it go to the end of fresh."""
        piece = self._target.pieces[token]
        if piece:
            self._text += piece
            self._ends.append(len(self._text))
            num_more = len(self._ends) - self._prefix_tokens
            if num_more >= SETTLE_TOKENS and num_more % SETTLE_TOKENS == 0:
                self._settle(fresh)
            return
        # What a special token parts needs no context.
        self._settle_at(len(self._text), fresh)
        told = self._pair.to_draft_ids(token)
        # A text begins once.
        if tuple(told) != self._draft.opening or self._num_settled + len(fresh) > len(told):
            fresh += told

    def _settle(self, fresh: list[int]) -> None:
        """Move the settled edge up to where both vocabularies agree, p tokens before the end or more."""
        limit = self._ends[-1 - self._prefix_tokens]
        words = [at for at in self._draft.find_word_boundaries(self._text) if at <= limit and at in self._ends]
        if words:
            self._settle_at(words[-1], fresh)
            return
        if len(self._ends) < self._prefix_tokens + WORD_TOKENS:
            return
        text = self._text[: find_complete_end(self._text)]
        ids = self._encode(text)
        if ids is not None:
            pieces = self._draft.pieces
            for at in islice(find_shared_boundaries(text, self._ends, token_ends(ids, pieces), limit), EDGE_TRIES):
                behind = tokens_after(ids, pieces, at)
                # What comes later is encoded from here on: the text before must not be missed.
                if behind is not None and self._draft.encode(text[at:]) == behind:
                    fresh += ids[: len(ids) - len(behind)]
                    self._cut(at)
                    self._encoded = text[at:], behind
                    return
        if ids is None or len(self._ends) >= LONGEST_TAIL:
            self._settle_at(next(find_shared_boundaries(self._text, self._ends, self._ends, limit), limit), fresh)

    def _settle_at(self, edge: int, fresh: list[int]) -> None:
        fresh += self._spell(self._text[:edge])[0]
        self._cut(edge)

    def _cut(self, edge: int) -> None:
        self._text = self._text[edge:]
        self._ends = [end - edge for end in self._ends if end > edge]

    def _spell(self, text: bytes) -> tuple[list[int], bool]:
        """The draft model's ids of a text, and whether they are exactly it."""
        ids = self._encode(text)
        return (ids, True) if ids is not None else self._draft.encode_best_effort(text)

    def _encode(self, text: bytes) -> list[int] | None:
        """The draft model's ids of a text; those of the last one are remembered."""
        if self._encoded[0] != text:
            self._encoded = text, self._draft.encode(text)
        return self._encoded[1]

    def _encode_behind(self, new: bytes) -> list[int] | None:
        """The target's ids of text behind what is committed; None if no token of its begins there."""
        for num_tried, start in enumerate(self._prefix_starts()):
            prefix = self._text[start:]
            ids = self._target.encode(prefix + new)
            behind = None if ids is None else tokens_after(ids, self._target.pieces, len(prefix))
            if behind is not None:
                self.counts.resynchronised += num_tried > 0
                return behind
        return None

    def _prefix_starts(self) -> list[int]:
        """Where the text before a draft may begin: first with p tokens and all of the word they begin in.

        The last one is where no such text is left, or only an incomplete character.
        """
        text = self._text
        whole = find_complete_end(text)
        starts = [0, *self._ends]
        first = starts[max(0, len(starts) - 1 - self._prefix_tokens)]
        if self._prefix_tokens:
            first = max((edge for edge in find_word_boundaries(text) if edge <= first), default=0)
        usable = [at for at in starts if at <= whole and is_character_boundary(text, at)]
        return [at for at in usable if at >= first] or usable[-1:]


def _num_equal(ids: Sequence[int], others: Sequence[int]) -> int:
    """How many leading ids are equal."""
    pairs = enumerate(zip(ids, others, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(ids), len(others)))
