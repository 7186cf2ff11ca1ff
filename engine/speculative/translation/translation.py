"""Drafts between vocabularies: what the draft model reads of a text, and what of its draft comes back.

*there* is the committed text in the draft model's ids, *back* a draft in the target's. Nothing here can make
an answer wrong, since the target samples every drafted position itself; a draft that cannot be translated
exactly is left out and counted.
"""

from typing import Literal

from engine.model.tokenizer import Tokenizer
from engine.model.vocabulary import Vocabulary
from engine.speculative.translation.naive import NaiveTranslator
from engine.speculative.translation.shared import SharedTranslator, IdentityTranslator
from engine.speculative.translation.token_map import TokenMap
from engine.speculative.translation.translator import Translator, VocabularyPair

Strategy = Literal["context", "naive", "shared", "none"]
PREFIX_TOKENS = 5
"""Committed tokens that stand before what is encoded, unless settings say otherwise."""


class Translation:
    """How one draft model and one target understand each other; makes a translator for every row.

    strategy: the one in use. pair: None for "none", which looks at no text.
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

        strategy: "auto" is "none" for one and the same vocabulary, else "context".
        Raises VocabularyError if text has to be translated and a tokenizer's tokens are not known by bytes.
        """
        if strategy == "auto":
            strategy = "none" if draft.fingerprint == target.fingerprint else "context"
        pair = None
        if strategy != "none":
            vocabularies = Vocabulary(draft), Vocabulary(target)
            pair = VocabularyPair(*vocabularies, TokenMap(*vocabularies))
        return cls(strategy, pair, draft.vocab_size, target.vocab_size, prefix_tokens)

    def make_translator(self) -> Translator:
        """A translator for a new row."""
        if self.strategy == "none":
            return IdentityTranslator(self.num_draft_ids, self.num_target_ids)
        assert self.pair is not None
        if self.strategy == "naive":
            return NaiveTranslator(self.pair)
        if self.strategy == "shared":
            return SharedTranslator(self.pair)
        # It builds on this module.
        from engine.speculative.translation.context import ContextTranslator

        return ContextTranslator(self.pair, self.prefix_tokens)
