"""What every translation strategy has in common: the translator's protocol and the pair of vocabularies."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.model.vocabulary import Vocabulary
from engine.speculative.translation.token_map import UNMATCHED, TokenMap


@dataclass(slots=True)
class TranslationCounts:
    """What became of one row's drafts: each is translated, absorbed or skipped.

    translated: at least one id for the target. absorbed: nothing new was left of it. skipped: it could not
    be said exactly in the target's tokens. resynchronised: those among them for which the edge had to be
    looked for.
    """

    translated: int = 0
    absorbed: int = 0
    resynchronised: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class TranslatedText:
    """The committed text in the ids of the draft model.

    ids: all of them, at least one if anything was committed. Not to be changed, and good until the next
    reading is made.
    num_same: leading ids that the reading before had too; a cache is rewound to there and no further.
    num_settled: leading ids that stay whatever is committed later.
    """

    ids: Sequence[int]
    num_same: int
    num_settled: int


class Translator(Protocol):
    """Reads one row's text for the draft model, and carries its drafts back."""

    counts: TranslationCounts

    def translate_text(self, tokens: Sequence[int]) -> TranslatedText:
        """Read all committed tokens of the target, those of the call before and new ones behind them."""

    def translate_draft(self, drafted: Sequence[int]) -> list[int]:
        """The target's ids for what the draft model said behind the last reading; none if it cannot be said.

        The bytes of the committed tokens and these are those of the committed tokens and the beginning of
        the drafted text.
        """


@dataclass(frozen=True)
class VocabularyPair:
    """Two vocabularies and what they share."""

    draft: Vocabulary
    target: Vocabulary
    token_map: TokenMap
    _told: dict[int, list[int]] = field(default_factory=dict)

    def to_draft_ids(self, token: int) -> list[int]:
        """What the draft model reads for one token of the target: its own id, else those of its text.

        A special that it does not have is spelled, but for the beginning of a text, which is left out. Made
        once for every token.
        """
        ids = self._told.get(token)
        if ids is None:
            known = int(self.token_map.to_draft[token]) if token < self.target.size else UNMATCHED
            # The beginning of a text says nothing to a model that knows no such token.
            spelling = "" if token == self.target.bos else self.target.special_strings.get(token)
            text = self.target.to_bytes([token]) if spelling is None else spelling.encode()
            ids = self._told[token] = [known] if known != UNMATCHED else self.draft.encode_best_effort(text)[0]
        return ids

    def to_target_ids(self, drafted: Sequence[int]) -> list[int]:
        """The target's ids of a draft up to the first that it does not share."""
        ids: list[int] = self.token_map.to_target[list(drafted)].tolist()
        return ids[: ids.index(UNMATCHED)] if UNMATCHED in ids else ids

    def split_at_special(self, drafted: Sequence[int]) -> tuple[bytes, list[int]]:
        """A draft's text up to its first special, and the target's id of that, if it has one."""
        pieces = self.draft.pieces
        end = next((at for at, token in enumerate(drafted) if not pieces[token]), len(drafted))
        return self.draft.to_bytes(drafted[:end]), self.to_target_ids(drafted[end : end + 1])


def count(counts: TranslationCounts, ids: list[int], drafted: Sequence[int]) -> list[int]:
    """Count a draft that came through as translated, or as absorbed if nothing is left of it; returns ids."""
    if ids:
        counts.translated += 1
    elif drafted:
        counts.absorbed += 1
    return ids


class AppendOnlyTranslator:
    """What the draft model was told, in its ids: they only grow."""

    def __init__(self, pair: VocabularyPair) -> None:
        self.counts = TranslationCounts()
        self._pair = pair
        self._ids = list(pair.draft.opening)
        self._num_read = 0
        self._num_given = 0

    def _read(self, tokens: Sequence[int]) -> TranslatedText:
        """The reading once all of these tokens were told."""
        self._num_read = len(tokens)
        if tokens and not self._ids:
            self._ids.append(self._pair.draft.start_id)
        same, self._num_given = self._num_given, len(self._ids)
        return TranslatedText(self._ids, same, len(self._ids))
