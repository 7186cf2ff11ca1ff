"""Translation token by token, without text: by equal ids, or by the tokens that both vocabularies have."""

from collections.abc import Sequence

from reprise.engine.speculative.translation.translator import (
    AppendOnlyTranslator,
    TranslatedText,
    TranslationCounts,
)


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


class SharedTranslator(AppendOnlyTranslator):
    """Maps tokens to equal tokens, without encoding the text.

    The draft model may draft only tokens that both models have. It reads the text as the target's tokens
    split it: a target token that it lacks is replaced by its own tokens for the same bytes.
    """

    def translate_text(self, tokens: Sequence[int]) -> TranslatedText:
        """Append the draft model's ids of the new tokens; tokens for which it has none are left out."""
        new = tokens[self._num_translated :]
        # Not a second beginning of sequence.
        if not self._num_translated and new and self._pair.to_draft_ids(new[0]) == self._ids:
            new = new[1:]
        for token in new:
            self._ids += self._pair.to_draft_ids(token)
        return self._finish_text(tokens)

    def translate_draft(self, drafted: Sequence[int]) -> list[int]:
        """Return the target's ids of the drafted ones, up to the first that the target lacks."""
        return self.counts.add(self._pair.to_target_ids(drafted), drafted)
