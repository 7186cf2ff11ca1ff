"""Recognize formats of tool calls that mlx-lm has no parser for, and the special tokens that formats use.

They are recognized by the chat template and the vocabulary, as mlx-lm recognizes its own.
"""

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


def find_format(wrapped: TokenizerWrapper) -> tuple[str, str, str]:
    """Return the name of a model's format of tool calls, and the markers around a call.

    The name is "" if neither mlx-lm nor this knows it; the end is "" if a call goes on to the answer's end.
    """
    if wrapped.tool_parser is None:
        return _recognize(wrapped)
    name = wrapped.tool_parser.__module__.rpartition(".")[2]
    return name, wrapped.tool_call_start, wrapped.tool_call_end or ""


def _recognize(tokenizer: Any) -> tuple[str, str, str]:
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


def inner_tokens(tokenizer: Any, call_format: str) -> list[str]:
    """Return the special tokens within calls of a format, as far as the vocabulary has them."""
    if call_format == HARMONY:
        return list(HARMONY_TOKENS)
    known = _INNER_TOKENS.get("deepseek_v3" if call_format == "deepseek_v31" else call_format, ())
    return [text for text in known if has_token(tokenizer, text)]


def has_token(tokenizer: Any, text: str) -> bool:
    """Return whether a text is a single token of the vocabulary."""
    return tokenizer.backend_tokenizer.token_to_id(text) is not None
