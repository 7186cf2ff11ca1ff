"""Translation of text without its context: the published baseline."""

from collections.abc import Sequence

from engine.model.text_boundaries import find_complete_end
from engine.speculative.translation.translator import (
    AppendOnlyTranslator,
    TranslatedText,
    VocabularyPair,
    count,
)


class NaiveTranslator(AppendOnlyTranslator):
    """Text of new tokens encoded alone, both ways: edges of tokens are where they happen to be.

    Source: the published baseline; what `context` is measured against.
    """

    def __init__(self, pair: VocabularyPair) -> None:
        super().__init__(pair)
        self._pending = b""

    def translate_text(self, tokens: Sequence[int]) -> TranslatedText:
        """Encode the text of the new tokens; an incomplete character waits for its rest."""
        target = self._pair.target
        pieces = [self._pending]
        for token in tokens[self._num_read :]:
            if token in target.special:
                self._say(b"".join(pieces))
                pieces = []
                self._say_special(token)
            else:
                pieces.append(target.to_bytes([token]))
        text = b"".join(pieces)
        whole = find_complete_end(text)
        self._say(text[:whole])
        self._pending = text[whole:]
        return self._read(tokens)

    def translate_draft(self, drafted: Sequence[int]) -> list[int]:
        """Encode the drafted text up to a special token or an incomplete character."""
        if self._pending:
            self.counts.skipped += 1
            return []
        text, special = self._pair.split_at_special(drafted)
        whole = find_complete_end(text)
        ids = self._pair.target.encode(text[:whole])
        if ids is None:
            self.counts.skipped += 1
            return []
        if whole == len(text):
            ids += special
        return count(self.counts, ids, drafted)

    def _say(self, text: bytes) -> None:
        self._ids += self._pair.draft.encode_best_effort(text)[0]

    def _say_special(self, token: int) -> None:
        told = self._pair.to_draft_ids(token)
        # A text begins once.
        if not (self._num_read == 0 and told == self._ids):
            self._ids += told
