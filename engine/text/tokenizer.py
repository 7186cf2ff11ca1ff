"""Encode and decode text and render chats, for the server's threads.

Wraps mlx-lm's tokenizer. Encoding, decoding and rendering are thread-safe. Formats of tool calls that mlx-lm
has no parser for are recognized like its own: by the template and the vocabulary.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper, _infer_tool_parser

from reprise.engine.interface.images import ImageProcessor
from reprise.engine.interface.request import PromptEnd
from reprise.engine.sandbox.child_process import PROCESS, ChildError
from reprise.engine.text.encoding import TextEncoder
from reprise.engine.text.markers import HARMONY, FimTokens, Marker, Markers, ends_with, find_fim
from reprise.engine.text.templates.chat_template import (
    HEAD_CHARACTERS,
    HEAD_TOKENS,
    ChatTemplate,
    Form,
    MessageOpenings,
    TemplateError,
    find_openings,
    template_text,
)
from reprise.engine.text.templates.fit import (
    CALL_END,
    CALL_GAP,
    CALL_START,
    Json,
    assistant,
    probe_call,
    user,
)
from reprise.engine.text.token_table import TokenTable, decode_partial, read_table

HARMONY_TOKENS = (
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
)
"""The tokens of harmony's messages."""

DSML = "｜DSML｜"
"""The beginning of the tags of DeepSeek V3.2 and later, which have no text template in mlx-lm."""

_INNER_TOKENS = {
    "mistral": ("[ARGS]", "[CALL_ID]"),
    "kimi_k2": ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    "muse_spark": ("<|start|>", "<|message|>", "<|eom|>"),
    "kimi_k3": ("<|open|>", "<|close|>", "<|sep|>"),
    "deepseek_v3": ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    "deepseek_v31": ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    "deepseek_v32": (DSML,),
    "gemma4": ('<|"|>',),
    "function_gemma": ("<escape>",),
    "glm47": ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
}


def find_format(tokenizer: TokenizerWrapper) -> tuple[str, str, str]:
    """Return the name of a model's format of tool calls, and the markers around a call.

    The name is "" if neither mlx-lm nor this module knows it. The end is "" if a call extends to the answer's
    end.
    """
    if tokenizer.tool_parser is not None:
        name = tokenizer.tool_parser.__module__.rpartition(".")[2]
        return name, tokenizer.tool_call_start, tokenizer.tool_call_end or ""
    if all(has_token(tokenizer, text) for text in HARMONY_TOKENS):
        return HARMONY, "<|call|>", ""
    template = template_text(tokenizer)
    if has_token(tokenizer, "<｜tool▁calls▁begin｜>") and "<｜tool▁calls▁begin｜>" in template:
        name = "deepseek_v3" if "```json" in template else "deepseek_v31"
        return name, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    if DSML in template or (not template and has_token(tokenizer, DSML)):
        is_newer = "tool_calls>" in template and "function_calls>" not in template
        section = "tool_calls" if is_newer else "function_calls"
        return "deepseek_v32", f"<{DSML}{section}>", f"</{DSML}{section}>"
    if "Environment: ipython" in template and '"parameters"' in template:
        return "llama3", '{"name": ', ""
    if isinstance(tokenizer.chat_template, dict):
        # mlx-lm reads no template that is one of several.
        alone = SimpleNamespace(chat_template=template, get_vocab=tokenizer.get_vocab)
        if (name := _infer_tool_parser(alone)) is not None:
            parser = import_module(f"mlx_lm.tool_parsers.{name}")
            return name, parser.tool_call_start, parser.tool_call_end or ""
    return "", "", ""


def has_token(tokenizer: Any, text: str) -> bool:
    """Return whether a text is a single token of the vocabulary."""
    return tokenizer.backend_tokenizer.token_to_id(text) is not None


MAX_OPENING_TOKENS = 16
"""Maximum tokens at the end of a prompt that open the reasoning: the marker and whitespace after it."""

REPLACEMENT = "\ufffd"
"""Stands for bytes that are not a character, one for each maximal invalid subpart."""

MAX_DECODED = 1 << 15
"""Tokens whose text is kept: those used last. One takes about 200 bytes."""

_THINKING = ("[THINK]", "[/THINK]")
"""Around the thoughts of Mistral's reasoning models, which mlx-lm does not know."""

_SPOKEN = "Looking."


class Tokenizer:
    """The tokenizer and the chat template of one model.

    cache_folder: stores tables of the tokens between starts; None to make them every time.
    file_digest: see read_once(); "" if it is not known.
    template_arguments: variables for the chat template. Those of a call to render_chat() override them.
    """

    def __init__(
        self,
        wrapped: TokenizerWrapper,
        vocab_size: int,
        cache_folder: Path | None = None,
        file_digest: str = "",
        template_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.wrapped = wrapped
        if self.has_chat_template:
            PROCESS.isolate()
        self._encoder = TextEncoder(wrapped._tokenizer)
        self._template = ChatTemplate(wrapped, self._encoder, template_arguments)
        self.vocab_size = vocab_size
        self._cache_folder = cache_folder
        self._file_digest = file_digest
        # Answers consist of a few thousand different tokens.
        self.decode_alone = lru_cache(MAX_DECODED)(partial(_decode_alone, self.backend))

    @cached_property
    def table(self) -> TokenTable:
        """The bytes of all tokens."""
        return read_table(self.backend, self._cache_folder, self._file_digest)

    @property
    def fingerprint(self) -> str:
        """A digest of the vocabulary, equal for two models exactly if their vocabularies are equal."""
        return self.table.fingerprint

    @property
    def longest_token(self) -> int:
        """The characters of the longest token."""
        # A token string is never shorter than the token's text.
        return self.table.longest_token

    @property
    def has_chat_template(self) -> bool:
        """Whether the model can render chat messages."""
        return bool(self.wrapped.has_chat_template)

    @cached_property
    def backend(self) -> Any:
        """The tokenizers.Tokenizer underneath, for incremental decoding."""
        return self.wrapped.backend_tokenizer

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer. Harmony's are in no configuration."""
        ends = ("<|call|>", "<|return|>") if self.markers.is_harmony else ()
        return frozenset([*self.wrapped.eos_token_ids, *map(self.backend.token_to_id, ends)])

    @cached_property
    def description(self) -> dict[str, str | None]:
        """The tokenizer's class, the special tokens by its configuration's names, and the chat template.

        chat_template: None if there is none, or if it is no text.
        """
        inner, template = self.wrapped._tokenizer, self.wrapped.chat_template
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        return {
            "tokenizer_class": type(inner).__name__,
            **{name: getattr(inner, name, None) for name in names},
            "chat_template": template if isinstance(template, str) else None,
        }

    def piece(self, token: int) -> bytes:
        """Return the bytes of one token, which may be part of a character; none for an id without a token."""
        table = self.table
        if table.fault:
            return str(self.backend.decode([token], skip_special_tokens=False)).encode()
        return table.pieces[token] if token < len(table.pieces) else b""

    @cached_property
    def line_ends(self) -> frozenset[int]:
        """Tokens whose text contains a line break."""
        tokens = range(self.vocab_size)
        if not self.table.fault:
            return self.table.line_ends.intersection(tokens)
        return frozenset(token for token in tokens if b"\n" in self.piece(token))

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Control tokens, which are not text. Markers are left out: parsers of the answer need them."""
        needed = self.markers.all if self.markers.is_harmony else self.markers.outer
        marking = {token for marker in needed for token in marker.tokens}
        added = self.backend.get_added_tokens_decoder()
        return frozenset(token for token, entry in added.items() if entry.special) - marking

    @cached_property
    def fim(self) -> FimTokens | None:
        """The model's fill-in-the-middle tokens; None if it has none."""
        return find_fim(self.backend.token_to_id)

    @cached_property
    def markers(self) -> Markers:
        """The markers of reasoning and tool calls that mlx-lm or markers.py knows for the model."""
        wrapped = self.wrapped
        call_format, call_start, call_end = find_format(wrapped)
        if call_format == HARMONY:
            return Markers(
                self._marker("<|channel|>analysis<|message|>"),
                self._marker("<|end|>"),
                self._marker("<|call|>"),
                inner=self._markers_of(HARMONY_TOKENS),
                call_format=HARMONY,
                thinking_switches=self._template.find_thinking_switches(),
            )
        thinking = wrapped.think_start, wrapped.think_end
        # The vocabularies of Mistral's other models have these tokens too.
        if not thinking[0] and _THINKING[0] in template_text(wrapped):
            thinking = _THINKING if all(has_token(wrapped, text) for text in _THINKING) else thinking
        think_start, think_end = map(self._marker, thinking)
        separators = dict.fromkeys(wrapped.structural_markers)
        for state, transitions in wrapped.response_transitions.items():
            for text, next_state in transitions:
                if next_state == "reasoning":
                    think_start = self._marker(text)
                elif state == "reasoning":
                    think_end = self._marker(text)
                if next_state not in ("reasoning", "tool"):
                    separators[text] = None
        is_generic = not call_start and self._template.traits is not None
        if is_generic:
            call_format, call_start, call_end = "json_tools", CALL_START, CALL_END
        inner = _INNER_TOKENS.get(call_format, ())
        return Markers(
            think_start,
            think_end,
            self._marker(call_start),
            self._marker(call_end),
            self._markers_of(separators),
            self._markers_of(text for text in inner if has_token(wrapped, text)),
            call_format,
            CALL_GAP if is_generic else self._find_call_gap(call_start) if call_start else "",
            is_generic,
            self._template.find_thought_gap(think_start.text, think_end.text, is_generic=is_generic)
            if think_start and think_end
            else None,
            self._template.find_thinking_switches(),
        )

    def _find_call_gap(self, call_start: str) -> str:
        """Return the whitespace that the chat template writes between content and a tool call."""
        messages = [user("a"), assistant(_SPOKEN, [probe_call("call_1")])]
        try:
            rendered = self.wrapped.apply_chat_template(messages, tokenize=False, **self._template.arguments)
        except ChildError:
            raise
        # A template is a program that comes with the model: it may raise anything.
        except Exception:
            return ""
        gap, found, _ = rendered.partition(_SPOKEN)[2].partition(call_start)
        return gap if found and gap.isspace() else ""

    def _markers_of(self, texts: Iterable[str]) -> tuple[Marker, ...]:
        return tuple(marker for text in texts if (marker := self._marker(text)))

    def _marker(self, text: str | None) -> Marker | None:
        return Marker(text, tuple(self.encode_answer(text))) if text else None

    @cached_property
    def thought_switch(self) -> Json | None:
        """The variable that makes the chat template keep thoughts of earlier turns, with its value.

        None if it has none, keeps them anyway, or has no thoughts.
        """
        return self._template.find_thought_switch() if self.has_chat_template else None

    @cached_property
    def openings(self) -> MessageOpenings:
        """The tokens with which messages begin in the chat template's prompts."""
        if not self.has_chat_template:
            return MessageOpenings()

        def render(messages: list[Json], end: PromptEnd) -> list[int]:
            return self._template.render(messages, None, {}, end, form="unchanged")

        return find_openings(render, frozenset(self.backend.get_added_tokens_decoder()))

    def find_head_end(self, prompt: Sequence[int], text: str) -> int:
        """Return the index where system text and tools end in a prompt; 0 if it is not known.

        text: the text of the user's first message.
        """
        said = text.strip()
        ids = self.encode_answer(said[:HEAD_CHARACTERS]) if said else []
        is_whole = len(said) <= HEAD_CHARACTERS and len(ids) <= HEAD_TOKENS
        return self.openings.head_end(prompt, ids[:HEAD_TOKENS], is_whole=is_whole)

    def opens_thinking(self, prompt: Sequence[int]) -> bool:
        """Return whether a prompt ends with the marker that begins reasoning, and perhaps whitespace."""
        marker = self.markers.think_start
        if marker is None:
            return False
        for end in range(len(prompt), max(0, len(prompt) - MAX_OPENING_TOKENS), -1):
            if ends_with(prompt, marker.tokens, end):
                return True
            if self.decode(prompt[end - 1 : end]).strip():
                break
        return False

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text, with a beginning-of-sequence token if the model has one."""
        return self._encoder.encode(text, adds_specials=True)

    def encode_answer(self, text: str) -> list[int]:
        """Return the ids of text as part of an answer, without the special tokens around a prompt."""
        return self._encoder.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; incomplete characters become U+FFFD."""
        return str(self.wrapped.decode(list(ids)))

    def render_chat(
        self,
        messages: list[Json],
        tools: list[Json] | None = None,
        template_arguments: Json | None = None,
        end: PromptEnd = "answer",
        processor: ImageProcessor | None = None,
    ) -> list[int]:
        """Return the ids of chat messages, by default up to where the assistant's answer begins.

        messages: in OpenAI's format, content as a string or None. Messages that the template would reject or
            truncate are changed; see templates/fit.py.
        template_arguments: variables for the template, before the tokenizer's own. The server has already
            rejected forbidden ones.
        processor: the model's image processor; each image mark becomes one placeholder.
        Raises TemplateError if there is no template or it rejects the messages, and ChildError if the machine
        fails.
        """
        if not self.has_chat_template:
            raise TemplateError("this model has no chat template; use /v1/completions")
        form: Form = "generic" if self.markers.is_generic else "fitted"
        if self.markers.is_harmony:
            form = "unchanged"
        elif self.markers.call_format == "pythonic":
            form = "pythonic"
        return self._template.render(
            messages, tools, template_arguments or {}, end, form=form, processor=processor
        )


def _decode_alone(backend: Any, token: int) -> tuple[str, bytes | None]:
    """Return a single token's text, and its bytes if it is not text: part of a character, or no token.

    On the engine's thread.
    """
    token_string = backend.id_to_token(token)
    if not token_string:
        return "", b""
    text = str(backend.decode([token], skip_special_tokens=False))
    return text, (decode_partial(token_string) or None) if REPLACEMENT in text else None
