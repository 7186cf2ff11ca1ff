"""Translation of text without its context."""

from collections.abc import Sequence

from engine.speculative.translation.translator import AppendOnlyTranslator, TranslatedText, VocabularyPair
from engine.text.text_boundaries import find_complete_end


class NaiveTranslator(AppendOnlyTranslator):
    """Encodes new text by itself, in both directions, wherever token boundaries happen to fall.

    Source: the published baseline, against which `context` is measured.
    """

    def __init__(self, pair: VocabularyPair) -> None:
        super().__init__(pair)
        self._incomplete = b""

    def translate_text(self, tokens: Sequence[int]) -> TranslatedText:
        """Encode the text of the new tokens; an incomplete character waits for its remaining bytes."""
        target = self._pair.target
        pieces = [self._incomplete]
        for token in tokens[self._num_translated :]:
            if token in target.special:
                self._append_text(b"".join(pieces))
                pieces = []
                self._append_special(token)
            else:
                pieces.append(target.to_bytes([token]))
        text = b"".join(pieces)
        end = find_complete_end(text)
        self._append_text(text[:end])
        self._incomplete = text[end:]
        return self._finish_text(tokens)

    def translate_draft(self, drafted: Sequence[int]) -> list[int]:
        """Encode the drafted text up to a special token or an incomplete character."""
        if self._incomplete:
            self.counts.skipped += 1
            return []
        text, special = self._pair.split_at_special(drafted)
        end = find_complete_end(text)
        ids = self._pair.target.encode(text[:end])
        if ids is None:
            self.counts.skipped += 1
            return []
        if end == len(text):
            ids += special
        return self.counts.add(ids, drafted)

    def _append_text(self, text: bytes) -> None:
        self._ids += self._pair.draft.encode_best_effort(text)[0]

    def _append_special(self, token: int) -> None:
        ids = self._pair.to_draft_ids(token)
        # Not a second beginning of sequence.
        if not (self._num_translated == 0 and ids == self._ids):
            self._ids += ids
