"""Recognize formats of tool calls that mlx-lm has no parser for, and the special tokens that formats use.

They are recognized by the chat template and the vocabulary, as mlx-lm recognizes its own.
"""

from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper, _infer_tool_parser

from reprise.engine.text.markers import HARMONY
from reprise.engine.text.templates.chat_template import template_text

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
    "deepseek_v32": (DSML,),
    "gemma4": ('<|"|>',),
    "function_gemma": ("<escape>",),
    "glm47": ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
}


@dataclass(frozen=True, slots=True)
class FoundFormat:
    """A format of tool calls. start, end: its markers; end is "" if a call goes on to the answer's end."""

    name: str
    start: str
    end: str = ""


def recognize(tokenizer: Any) -> FoundFormat | None:
    """Return the format of tool calls of a model for which mlx-lm finds none; None if it is unknown here too.

    tokenizer: the model's, of transformers.
    """
    if all(has_token(tokenizer, text) for text in HARMONY_TOKENS):
        return FoundFormat(HARMONY, "<|call|>")
    template = template_text(tokenizer)
    if has_token(tokenizer, "<｜tool▁calls▁begin｜>") and "<｜tool▁calls▁begin｜>" in template:
        name = "deepseek_v3" if "```json" in template else "deepseek_v31"
        return FoundFormat(name, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    if DSML in template or (not template and has_token(tokenizer, DSML)):
        section = "tool_calls" if "tool_calls>" in template and "function_calls>" not in template else ""
        section = section or "function_calls"
        return FoundFormat("deepseek_v32", f"<{DSML}{section}>", f"</{DSML}{section}>")
    if "Environment: ipython" in template and '"parameters"' in template:
        return FoundFormat("llama3", '{"name": ')
    return _recognize_named(tokenizer) if isinstance(tokenizer.chat_template, dict) else None


def _recognize_named(tokenizer: Any) -> FoundFormat | None:
    """Return the format that mlx-lm would find if the template for tools were the only one."""
    alone = SimpleNamespace(chat_template=template_text(tokenizer), get_vocab=tokenizer.get_vocab)
    name = _infer_tool_parser(alone)
    if name is None:
        return None
    parser = import_module(f"mlx_lm.tool_parsers.{name}")
    return FoundFormat(name, parser.tool_call_start, parser.tool_call_end or "")


def inner_tokens(tokenizer: Any, call_format: str) -> list[str]:
    """Return the special tokens within calls of a format, as far as the vocabulary has them."""
    if call_format == HARMONY:
        return list(HARMONY_TOKENS)
    known = _INNER_TOKENS.get("deepseek_v3" if call_format == "deepseek_v31" else call_format, ())
    return [text for text in known if has_token(tokenizer, text)]


def has_token(tokenizer: Any, text: str) -> bool:
    """Return whether a text is a single token of the vocabulary."""
    return tokenizer.backend_tokenizer.token_to_id(text) is not None


HARMONY_ENDS = ("<|call|>", "<|return|>")
"""The tokens that end an answer in harmony."""


def find_end_tokens(wrapped: TokenizerWrapper, backend: Any, is_harmony: bool) -> frozenset[int]:
    """Return the tokens that end an answer, among them those of its format that no configuration names.

    backend: the tokenizers.Tokenizer under `wrapped`.
    """
    ends = HARMONY_ENDS if is_harmony else ()
    return frozenset([*wrapped.eos_token_ids, *map(backend.token_to_id, ends)])
