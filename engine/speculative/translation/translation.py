"""Drafts between vocabularies: what the draft model reads of a text, and what of its draft comes back.

*there* is the committed text in the draft model's ids, *back* a draft in the target's. Nothing here can make
an answer wrong, since the target samples every drafted position itself; a draft that cannot be translated
exactly is left out and counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from engine.model.tokenizer import Tokenizer
from engine.model.vocabulary import Vocabulary, whole_characters
from engine.speculative.translation.token_map import NONE, TokenMap

Strategy = Literal["context", "naive", "shared", "none"]
PREFIX_TOKENS = 5
"""Committed tokens that stand before what is encoded, unless settings say otherwise."""


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
class Reading:
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

    def follow(self, tokens: Sequence[int]) -> Reading:
        """Read all committed tokens of the target, those of the call before and new ones behind them."""

    def carry_back(self, drafted: Sequence[int]) -> list[int]:
        """The target's ids for what the draft model said behind the last reading; none if it cannot be said.

        The bytes of the committed tokens and these are those of the committed tokens and the beginning of
        the drafted text.
        """


@dataclass(frozen=True)
class Pair:
    """Two vocabularies and what they share."""

    draft: Vocabulary
    target: Vocabulary
    token_map: TokenMap
    _told: dict[int, list[int]] = field(default_factory=dict)

    def told(self, token: int) -> list[int]:
        """What the draft model reads for one token of the target: its own id, else those of its text.

        A special that it does not have is spelled, but for the beginning of a text, which is left out. Made
        once for every token.
        """
        ids = self._told.get(token)
        if ids is None:
            known = int(self.token_map.to_draft[token]) if token < self.target.size else NONE
            # The beginning of a text says nothing to a model that knows no such token.
            spelling = "" if token == self.target.bos else self.target.spellings.get(token)
            text = self.target.text([token]) if spelling is None else spelling.encode()
            ids = self._told[token] = [known] if known != NONE else self.draft.spell(text)[0]
        return ids

    def shared_start(self, drafted: Sequence[int]) -> list[int]:
        """The target's ids of a draft up to the first that it does not share."""
        ids: list[int] = self.token_map.to_target[list(drafted)].tolist()
        return ids[: ids.index(NONE)] if NONE in ids else ids

    def parted(self, drafted: Sequence[int]) -> tuple[bytes, list[int]]:
        """A draft's text up to its first special, and the target's id of that, if it has one."""
        pieces = self.draft.pieces
        end = next((at for at, token in enumerate(drafted) if not pieces[token]), len(drafted))
        return self.draft.text(drafted[:end]), self.shared_start(drafted[end : end + 1])


class Translation:
    """How one draft model and one target understand each other; makes a translator for every row.

    strategy: the one in use. pair: None for "none", which looks at no text.
    """

    def __init__(
        self,
        strategy: Strategy,
        pair: Pair | None,
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

        strategy: "auto" is "none" for one and the same vocabulary, else "context".
        Raises VocabularyError if text has to be translated and a tokenizer's tokens are not known by bytes.
        """
        if strategy == "auto":
            strategy = "none" if draft.fingerprint == target.fingerprint else "context"
        pair = None
        if strategy != "none":
            vocabularies = Vocabulary(draft), Vocabulary(target)
            pair = Pair(*vocabularies, TokenMap(*vocabularies))
        return cls(strategy, pair, draft.vocab_size, target.vocab_size, prefix_tokens)

    def begin(self) -> Translator:
        """A translator for a new row."""
        if self.strategy == "none":
            return Untranslated(self.num_draft_ids, self.num_target_ids)
        assert self.pair is not None
        if self.strategy == "naive":
            return NaiveTranslator(self.pair)
        if self.strategy == "shared":
            return SharedTranslator(self.pair)
        # It builds on this module.
        from engine.speculative.translation.context import ContextTranslator

        return ContextTranslator(self.pair, self.prefix_tokens)


class Untranslated:
    """Ids as they are; those that the other model does not have are left out, and end a draft."""

    def __init__(self, num_draft_ids: int, num_target_ids: int) -> None:
        self.counts = TranslationCounts()
        self._num_draft_ids = num_draft_ids
        self._num_target_ids = num_target_ids
        self._num_read = 0
        self._num_given = 0
        self._kept: list[int] | None = None

    def follow(self, tokens: Sequence[int]) -> Reading:
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
        return Reading(ids, same, len(ids))

    def carry_back(self, drafted: Sequence[int]) -> list[int]:
        """Give the drafted ids up to the first that the target does not have."""
        foreign = (at for at, token in enumerate(drafted) if token >= self._num_target_ids)
        return count(self.counts, list(drafted[: next(foreign, len(drafted))]), drafted)


class _Teller:
    """What the draft model was told, in its ids: they only grow."""

    def __init__(self, pair: Pair) -> None:
        self.counts = TranslationCounts()
        self._pair = pair
        self._ids = list(pair.draft.opening)
        self._num_read = 0
        self._num_given = 0

    def _read(self, tokens: Sequence[int]) -> Reading:
        """The reading once all of these tokens were told."""
        self._num_read = len(tokens)
        if tokens and not self._ids:
            self._ids.append(self._pair.draft.start)
        same, self._num_given = self._num_given, len(self._ids)
        return Reading(self._ids, same, len(self._ids))


class NaiveTranslator(_Teller):
    """Text of new tokens encoded alone, both ways: edges of tokens are where they happen to be.

    Source: the published baseline; what `context` is measured against.
    """

    def __init__(self, pair: Pair) -> None:
        super().__init__(pair)
        self._pending = b""

    def follow(self, tokens: Sequence[int]) -> Reading:
        """Encode the text of the new tokens; an incomplete character waits for its rest."""
        target = self._pair.target
        pieces = [self._pending]
        for token in tokens[self._num_read :]:
            if token in target.special:
                self._say(b"".join(pieces))
                pieces = []
                self._say_special(token)
            else:
                pieces.append(target.text([token]))
        text = b"".join(pieces)
        whole = whole_characters(text)
        self._say(text[:whole])
        self._pending = text[whole:]
        return self._read(tokens)

    def carry_back(self, drafted: Sequence[int]) -> list[int]:
        """Encode the drafted text up to a special token or an incomplete character."""
        if self._pending:
            self.counts.skipped += 1
            return []
        text, special = self._pair.parted(drafted)
        whole = whole_characters(text)
        ids = self._pair.target.encode(text[:whole])
        if ids is None:
            self.counts.skipped += 1
            return []
        if whole == len(text):
            ids += special
        return count(self.counts, ids, drafted)

    def _say(self, text: bytes) -> None:
        self._ids += self._pair.draft.spell(text)[0]

    def _say_special(self, token: int) -> None:
        told = self._pair.told(token)
        # A text begins once.
        if not (self._num_read == 0 and told == self._ids):
            self._ids += told


class SharedTranslator(_Teller):
    """Tokens for tokens, with no text between.

    The draft model may say only what both have. What it reads is cut as the target cuts it: a token that it
    does not have is given in the pieces of its text.
    """

    def follow(self, tokens: Sequence[int]) -> Reading:
        """Look the new tokens up; those that say nothing to the draft model are left out."""
        new = tokens[self._num_read :]
        # A text begins once.
        if not self._num_read and new and self._pair.told(new[0]) == self._ids:
            new = new[1:]
        for token in new:
            self._ids += self._pair.told(token)
        return self._read(tokens)

    def carry_back(self, drafted: Sequence[int]) -> list[int]:
        """Look the drafted ids up, to the first that the target does not share."""
        return count(self.counts, self._pair.shared_start(drafted), drafted)


def count(counts: TranslationCounts, ids: list[int], drafted: Sequence[int]) -> list[int]:
    """Count a draft that came through as translated, or as absorbed if nothing is left of it; returns ids."""
    if ids:
        counts.translated += 1
    elif drafted:
        counts.absorbed += 1
    return ids
