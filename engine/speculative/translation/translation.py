"""The translation between a draft model and a target: its strategy, and a translator for every row.

The committed text is translated into the draft model's ids, and drafts into the target's. No translation can
change an answer, since the target samples every drafted position itself; a draft that cannot be translated
exactly is left out and counted.
"""

from typing import Literal

from reprise.engine.speculative.translation.context import ContextTranslator
from reprise.engine.speculative.translation.shared import IdentityTranslator, SharedTranslator
from reprise.engine.speculative.translation.token_map import TokenMap
from reprise.engine.speculative.translation.translator import Translator, VocabularyPair
from reprise.engine.text.tokenizer import Tokenizer
from reprise.engine.text.vocabulary import Vocabulary

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
