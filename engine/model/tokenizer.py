"""Text to tokens and back, for the server's side of the thread line.

Wraps mlx-lm's tokenizer. Calls are not thread-safe among themselves: the server makes them on one
thread of its own, and the engine's thread detokenises with objects that share no mutable state.
"""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import llguidance.hf
from llguidance import LLTokenizer
from mlx_lm.tokenizer_utils import TokenizerWrapper

from engine.model.chat_templates import isolate_templates
from engine.model.markers import Marker, Markers, ends_with
from engine.model.tool_calls import WrittenCall, read_calls, read_calls_with_timeout

LONGEST_OPENING = 16
"""Most tokens at the end of a prompt that begin the thinking, white space after the marker among them."""


class TemplateError(ValueError):
    """The chat template refused the messages; the message is the template's own."""


class Tokenizer:
    """Encoding, decoding and the chat template of one model."""

    def __init__(self, wrapped: TokenizerWrapper, vocab_size: int) -> None:
        self.wrapped = wrapped
        if self.has_chat_template:
            isolate_templates()
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
    def vocabulary(self) -> LLTokenizer:
        """The vocabulary by its bytes, as grammars need it. Raises ValueError for unknown kinds."""
        # Some tenths of a second for a large vocabulary.
        inner = self.wrapped._tokenizer
        return llguidance.hf.from_tokenizer(inner, n_vocab=self.vocab_size, eos_token=sorted(self.eos_ids))

    def piece(self, token: int) -> bytes:
        """A token's own bytes, which may be part of a character."""
        return bytes(self.vocabulary.decode_bytes([token]))

    @cached_property
    def line_ends(self) -> frozenset[int]:
        """Tokens whose text has a line break in it."""
        texts = self.backend.decode_batch([[token] for token in range(self.vocab_size)])
        return frozenset(token for token, text in enumerate(texts) if "\n" in text)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Tokens that steer and are no text, but for markers, which readers of the answer look for."""
        marking = {token for marker in self.markers.all for token in marker.tokens}
        added = self.backend.get_added_tokens_decoder()
        return frozenset(token for token, entry in added.items() if entry.special) - marking

    @cached_property
    def markers(self) -> Markers:
        """How the model marks its thinking and its calls, as far as mlx-lm knows."""
        wrapped = self.wrapped
        think_start, think_end = self._marker(wrapped.think_start), self._marker(wrapped.think_end)
        separators = dict.fromkeys(wrapped.structural_markers)
        for state, ways in wrapped.response_transitions.items():
            for text, leads_to in ways:
                if leads_to == "reasoning":
                    think_start = self._marker(text)
                elif state == "reasoning":
                    think_end = self._marker(text)
                if leads_to not in ("reasoning", "tool"):
                    separators[text] = None
        parser = wrapped.tool_parser
        return Markers(
            think_start,
            think_end,
            self._marker(wrapped.tool_call_start),
            self._marker(wrapped.tool_call_end),
            tuple(marker for text in separators if (marker := self._marker(text))),
            "" if parser is None else parser.__module__.rpartition(".")[2],
        )

    def _marker(self, text: str | None) -> Marker | None:
        return Marker(text, tuple(self.encode_answer(text))) if text else None

    @cached_property
    def answer_opening(self) -> tuple[int, ...]:
        """The first tokens with which the chat template opens an answer; none if it does not."""
        if not self.has_chat_template:
            return ()
        ask = [{"role": "user", "content": "a"}]
        render = self.wrapped.apply_chat_template
        try:
            asked, opened = (
                list(render(ask, add_generation_prompt=opens, tokenize=True, return_dict=False))
                for opens in (False, True)
            )
        # A template is a program that comes with the model: it may raise anything.
        except Exception:
            return ()
        # What follows differs, as when thinking is switched off.
        return tuple(opened[len(asked) :][:2]) if opened[: len(asked)] == asked else ()

    def opens_thinking(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt ends with the marker that begins the thinking."""
        marker = self.markers.think_start
        if marker is None:
            return False
        for end in range(len(prompt), max(0, len(prompt) - LONGEST_OPENING), -1):
            if ends_with(prompt, marker.tokens, end):
                return True
            if self.decode(prompt[end - 1 : end]).strip():
                break
        return False

    def parse_calls(self, text: str, tools: list[dict[str, Any]]) -> list[WrittenCall]:
        """The calls in what stands between the markers; none if it cannot be read. On any thread.

        tools: those of the request in OpenAI's form.
        """
        parse = self.wrapped.tool_parser
        if parse is None:
            return []
        # JSON takes no time to speak of.
        read = read_calls if self.markers.call_format == "json_tools" else read_calls_with_timeout
        return read(parse, text, tools)

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
