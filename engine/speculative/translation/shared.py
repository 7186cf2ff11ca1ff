"""Translation token by token, without text: the same ids, or the tokens that both vocabularies have."""

from collections.abc import Sequence

from engine.speculative.translation.translator import AppendOnlyTranslator, TranslatedText, TranslationCounts, count


class IdentityTranslator:
    """Ids as they are; those that the other model does not have are left out, and end a draft."""

    def __init__(self, num_draft_ids: int, num_target_ids: int) -> None:
        self.counts = TranslationCounts()
        self._num_draft_ids = num_draft_ids
        self._num_target_ids = num_target_ids
        self._num_read = 0
        self._num_given = 0
        self._kept: list[int] | None = None

    def translate_text(self, tokens: Sequence[int]) -> TranslatedText:
        """Give the committed tokens themselves, as long as the draft model has all of them."""
        new = tokens[self._num_read :]
        if self._kept is None and any(token >= self._num_draft_ids for token in new):
            self._kept = list(tokens[: self._num_read])
        if self._kept is not None:
            self._kept += [token for token in new if token < self._num_draft_ids]
            if tokens and not self._kept:
                self._kept.append(0)
        self._num_read = len(tokens)
        ids = tokens if self._kept is None else self._kept
        same, self._num_given = self._num_given, len(ids)
        return TranslatedText(ids, same, len(ids))

    def translate_draft(self, drafted: Sequence[int]) -> list[int]:
        """Give the drafted ids up to the first that the target does not have."""
        foreign = (at for at, token in enumerate(drafted) if token >= self._num_target_ids)
        return count(self.counts, list(drafted[: next(foreign, len(drafted))]), drafted)


class SharedTranslator(AppendOnlyTranslator):
    """Tokens for tokens, with no text between.

    The draft model may say only what both have. What it reads is cut as the target cuts it: a token that it
    does not have is given in the pieces of its text.
    """

    def translate_text(self, tokens: Sequence[int]) -> TranslatedText:
        """Look the new tokens up; those that say nothing to the draft model are left out."""
        new = tokens[self._num_read :]
        # A text begins once.
        if not self._num_read and new and self._pair.to_draft_ids(new[0]) == self._ids:
            new = new[1:]
        for token in new:
            self._ids += self._pair.to_draft_ids(token)
        return self._read(tokens)

    def translate_draft(self, drafted: Sequence[int]) -> list[int]:
        """Look the drafted ids up, to the first that the target does not share."""
        return count(self.counts, self._pair.to_target_ids(drafted), drafted)
