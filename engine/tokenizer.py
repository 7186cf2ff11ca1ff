"""Text to tokens and back, for the server's side of the thread line.

Wraps mlx-lm's tokenizer. Calls are not thread-safe among themselves: the server makes them on one
thread of its own, and the engine's thread detokenises with objects that share no mutable state.
"""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper


class TemplateError(ValueError):
    """The chat template refused the messages; the message is the template's own."""


class Tokenizer:
    """Encoding, decoding and the chat template of one model."""

    def __init__(self, wrapped: TokenizerWrapper, vocab_size: int) -> None:
        self.wrapped = wrapped
        self.vocab_size = vocab_size
        # A vocabulary's spelling of a token is never shorter than its text.
        self.longest_token = max(map(len, wrapped.get_vocab()))

    @property
    def fingerprint(self) -> str:
        """Names the vocabulary: models with one vocabulary have one fingerprint, others never."""
        entries = sorted((token_id, text) for text, token_id in self.wrapped.get_vocab().items())
        return hashlib.sha256(repr(entries).encode()).hexdigest()[:32]

    @property
    def has_chat_template(self) -> bool:
        """Whether chat messages can be rendered at all."""
        return bool(self.wrapped.has_chat_template)

    @property
    def backend(self) -> Any:
        """The tokenizers.Tokenizer underneath, for incremental decoding."""
        return self.wrapped.backend_tokenizer

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return frozenset(self.wrapped.eos_token_ids)

    @cached_property
    def line_ends(self) -> frozenset[int]:
        """Tokens whose text has a line break in it."""
        texts = self.backend.decode_batch([[token] for token in range(self.vocab_size)])
        return frozenset(token for token, text in enumerate(texts) if "\n" in text)

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text, with the beginning-of-sequence token where the model wants one."""
        return list(self.wrapped.encode(text))

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of text as a model would say it: without what only a prompt begins or ends with."""
        return list(self.wrapped.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; incomplete characters come out as U+FFFD."""
        return str(self.wrapped.decode(list(ids)))

    def render_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        template_arguments: dict[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of chat messages up to where the assistant's answer begins.

        messages: OpenAI's form, content as a string or None.
        template_arguments: the server has refused those that are not the client's to set.
        Raises TemplateError if the template refuses them or there is none.
        """
        if not self.has_chat_template:
            raise TemplateError("this model has no chat template; use /v1/completions")
        try:
            rendered = self.wrapped.apply_chat_template(
                messages,
                tools=tools,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                **(template_arguments or {}),
            )
        # A template is a program that comes with the model: it may raise anything.
        except Exception as fault:
            raise TemplateError(f"the chat template refused the messages: {fault}") from fault
        return list(rendered)
