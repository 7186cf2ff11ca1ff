"""Fill-in-the-middle: the special tokens that ask a model of code for the text between two texts.

Plain data without MLX, so that the server can import it.
"""

from collections.abc import Callable
from dataclasses import dataclass

TokenToId = Callable[[str], int | None]


@dataclass(frozen=True, slots=True)
class FimTokens:
    """The tokens that ask a model to fill in text: before the two given texts, and before the answer.

    middle: None if no token stands before the answer. is_suffix_first: whether the text after the gap comes
        first. file: the token before the name of each further file; None if the model takes no further files.
    ends: tokens that end the answer, beside the model's end-of-answer tokens.
    """

    prefix: int
    suffix: int
    middle: int | None
    is_suffix_first: bool = False
    file: int | None = None
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Family:
    prefix: str
    suffix: str
    middle: str | None
    is_suffix_first: bool = False
    file: str = ""
    ends: tuple[str, ...] = ()


_FAMILIES = (
    # Qwen, CodeGemma, whose separator of files has another name, and others.
    _Family(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        file="<|file_sep|>",
        ends=("<|fim_pad|>", "<|repo_name|>"),
    ),
    _Family("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", ends=("<|file_separator|>",)),
    # StarCoder and Granite.
    _Family(
        "<fim_prefix>", "<fim_suffix>", "<fim_middle>", file="<file_sep>", ends=("<fim_pad>", "<repo_name>")
    ),
    _Family("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ends=("<fim-pad>",)),
    _Family("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    _Family("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", is_suffix_first=True),
    _Family("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    # CodeLlama.
    _Family("▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>",)),
    # Codestral.
    _Family("[PREFIX]", "[SUFFIX]", None, is_suffix_first=True),
)


def find_fim(token_to_id: TokenToId) -> FimTokens | None:
    """Return a vocabulary's tokens for filling in, of the family that fits best; None if it has none."""
    found = [tokens for family in _FAMILIES if (tokens := _tokens_of(family, token_to_id)) is not None]
    return max(found, key=lambda tokens: (tokens.file is not None, len(tokens.ends)), default=None)


def _tokens_of(family: _Family, token_to_id: TokenToId) -> FimTokens | None:
    prefix, suffix = token_to_id(family.prefix), token_to_id(family.suffix)
    middle = None if family.middle is None else token_to_id(family.middle)
    if prefix is None or suffix is None or (middle is None and family.middle is not None):
        return None
    file = token_to_id(family.file) if family.file else None
    others = (*map(token_to_id, family.ends), file, prefix, suffix, middle)
    ends = tuple(token for token in others if token is not None)
    return FimTokens(prefix, suffix, middle, family.is_suffix_first, file, ends)
