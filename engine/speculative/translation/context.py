"""Translation of text in its context: committed and drafted text is encoded together with text before it.

Text: the target's text after the *settled boundary* is encoded by the draft model's tokenizer. The boundary
follows the end of the text at some distance, moving between places where both vocabularies agree, so that a
step does not cost more in a longer text.
Drafts: the last committed tokens (the *prefix*) and the drafted text after them are encoded by the target's
tokenizer. The translated draft is the part after the prefix, if a token begins there.
"""

from collections.abc import Sequence
from itertools import islice

from reprise.engine.speculative.translation.translator import (
    TranslatedText,
    TranslationCounts,
    VocabularyPair,
)
from reprise.engine.text.text_boundaries import (
    find_complete_end,
    find_shared_boundaries,
    find_word_boundaries,
    is_character_boundary,
    token_ends,
    tokens_after,
    valid_utf8_prefix,
)

SETTLE_TOKENS = 8
"""The settled boundary is moved up each time this many tokens beyond the prefix have followed it."""

WORD_BOUNDARY_TOKENS = 24
"""If there is no word boundary in this many tokens beyond the prefix, any other shared boundary is taken."""

MAX_TAIL_TOKENS = 64
"""With this many tokens after it, the settled boundary moves up even where the vocabularies do not agree."""

MAX_BOUNDARY_TRIES = 4
"""Maximum shared boundaries tried each time the settled boundary is to move."""


class ContextTranslator:
    """Translates one row's text and drafts. How many tokens come at a time makes no difference to the result.

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
        """Encode the text after the settled boundary again, together with the text of the new tokens.

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
        """Encode the drafted text, after that of the last committed tokens, in the target's ids.

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
        """Read one committed token; append the ids that become settled by it to settled."""
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
        """Return the draft model's ids of a text; the last text's ids are cached."""
        if self._last_encoded[0] != text:
            self._last_encoded = text, self._draft.encode(text)
        return self._last_encoded[1]

    def _encode_after_prefix(self, new: bytes) -> list[int] | None:
        """Return the target's ids of text after the committed text; None if no token begins at its start."""
        for num_tried, start in enumerate(self._prefix_starts()):
            prefix = self._text[start:]
            ids = self._target.encode(prefix + new)
            after = None if ids is None else tokens_after(ids, self._target.pieces, len(prefix))
            if after is not None:
                self.counts.resynchronised += num_tried > 0
                return after
        return None

    def _prefix_starts(self) -> list[int]:
        """Return where the prefix of a draft may begin, the longest prefix first.

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
