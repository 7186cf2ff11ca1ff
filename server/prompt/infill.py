"""Make the prompt that asks a code model for the text between two given texts."""

from collections.abc import Sequence
from dataclasses import dataclass

from reprise.engine.text.fim import FimTokens
from reprise.server.engine_types import Tokenizer
from reprise.server.errors import BadRequestError

SNIPPET = "\n\n--- snippet ---\n\n"
"""The text before another file for a model that knows no further files, as in llama-server."""
THIS_FILE = "filename"
"""The name of the file with the hole, if others precede it."""


@dataclass(frozen=True, slots=True)
class Hole:
    """A hole to fill in: the texts before and after it, and (name, text) of other files."""

    before: str
    after: str
    others: Sequence[tuple[str, str]] = ()


def fim_of(tokenizer: Tokenizer, model: str, param: str) -> FimTokens:
    """Return the model's fill-in-the-middle tokens. Raises BadRequestError if it has none.

    model, param: the model's name and the request's field, for the error.
    """
    if tokenizer.fim is None:
        raise BadRequestError(
            f"'{param}': the tokenizer of {model} has no tokens to fill in text with (fill-in-the-middle). "
            "Leave it out, or serve a model of code that was trained for this.",
            param=param,
            code="fim_not_supported",
        )
    return tokenizer.fim


def encode_hole(tokenizer: Tokenizer, fim: FimTokens, hole: Hole, has_special: bool) -> tuple[int, ...]:
    """Return the tokens of the prompt that asks for the text in a hole.

    has_special: whether to begin with the special tokens of the model's prompts, such as BOS, if any.
    """
    encode = tokenizer.encode_answer
    before, after = encode(hole.before), encode(hole.after)
    opening = _opening(tokenizer, hole.before, before) if has_special else []
    parts = [[fim.prefix, *before], [fim.suffix, *after]]
    if fim.is_suffix_first:
        parts.reverse()
    others: list[int] = []
    for name, text in hole.others:
        others += encode(SNIPPET + text) if fim.file is None else [fim.file, *encode(f"{name}\n{text}")]
    if others and fim.file is not None:
        others += [fim.file, *encode(f"{THIS_FILE}\n")]
    middle = [] if fim.middle is None else [fim.middle]
    return (*opening, *others, *parts[0], *parts[1], *middle)


def _opening(tokenizer: Tokenizer, text: str, tokens: Sequence[int]) -> list[int]:
    """Return the tokens that prompts begin with, found at a text and its tokens without them."""
    whole = tokenizer.encode(text)
    num_before = len(whole) - len(tokens)
    return whole[:num_before] if whole[num_before:] == list(tokens) else []
