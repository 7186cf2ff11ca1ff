"""The interface of all translation strategies, and their pair of vocabularies."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from reprise.engine.speculative.translation.token_map import UNMATCHED, TokenMap
from reprise.engine.text.vocabulary import Vocabulary


@dataclass(slots=True)
class TranslationCounts:
    """One row's drafts by the result of their translation: each is translated, absorbed or skipped.

    translated: the draft became at least one target token. absorbed: nothing new was left of the draft.
    skipped: the target's tokens cannot express the draft exactly.
    resynchronised: translated or absorbed, but with a shorter prefix, because the draft merged with the text
    in front of it.
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
    num_same: number of leading ids that the previous text had too, to which caches are rolled back.
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
        """Return the draft model's ids for one target token: the same token's id, else those of its text.

        A special token that the draft model lacks is encoded as its token string, except for the beginning of
        sequence, which is left out. Each token is encoded once and cached.
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


class AppendOnlyTranslator:
    """The common part of translators whose translated text only grows."""

    def __init__(self, pair: VocabularyPair) -> None:
        self.counts = TranslationCounts()
        self._pair = pair
        self._ids = list(pair.draft.opening)
        self._num_translated = 0
        self._num_returned = 0

    def _finish_text(self, tokens: Sequence[int]) -> TranslatedText:
        """Return the translated text, once the ids of all tokens were appended."""
        self._num_translated = len(tokens)
        if tokens and not self._ids:
            self._ids.append(self._pair.draft.start_id)
        num_same, self._num_returned = self._num_returned, len(self._ids)
        return TranslatedText(self._ids, num_same, len(self._ids))
