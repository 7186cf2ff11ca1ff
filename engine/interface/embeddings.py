"""Requests and results of embedding and ranking, exchanged between the server and the engine."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

TokenIds = tuple[int, ...]

Purpose = Literal["generate", "embed", "rerank"]
"""What a model is for."""

SPECIAL: Mapping[Purpose, str] = {"embed": "embeddings", "rerank": "ranking"}
"""The purposes of models that do not generate, in words."""

MAX_ALIKE = 1024
"""Leading tokens of a request's inputs that are compared with each other."""

Pooling = Literal["mean", "cls", "last", "max"]


@dataclass(frozen=True)
class Dense:
    """A dense layer after pooling. activation: a class of torch, by name. name: that of the weights."""

    folder: Path
    has_bias: bool
    activation: str = "Identity"
    name: str = "linear"


@dataclass(frozen=True)
class Recipe:
    """How hidden states become a vector.

    counts_prompt: whether the tokens of a prompt are pooled too. prompts: name -> text put before an input.
    max_tokens: the longest text, special tokens included; None if the model's folder does not say.
    is_guessed, prompts_are_guessed: whether it follows from the architecture, as the folder does not say.
    answers: the ids of the tokens yes and no, if the folder names them for ranking.
    """

    pooling: Pooling
    counts_prompt: bool = True
    dense: tuple[Dense, ...] = ()
    normalizes: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    max_tokens: int | None = None
    is_guessed: bool = False
    prompts_are_guessed: bool = False
    answers: tuple[int | None, int | None] | None = None

    def describe(self) -> str:
        """Describe the recipe in a few words."""
        guessed = ", by its architecture"
        pooling = f"pooling {self.pooling}{guessed if self.is_guessed else ''}"
        prompts = f"prompts: {', '.join(self.prompts)}{guessed if self.prompts_are_guessed else ''}"
        return f"{pooling}; {prompts}" if self.prompts else pooling


@dataclass(frozen=True, slots=True)
class EmbeddingInfo:
    """How a model embeds texts or rates pairs of them.

    dimensions: how many numbers a vector has; 1 for a model that ranks.
    before, after: special tokens around a text or a pair. between: special tokens between a pair's texts.
    second_type: the token type of a pair's second text, and of the special tokens that follow it.
    pair: text before a document, with {query} and {instruction}, if the model reads a pair as one text.
    instruction: what a query is for, unless a request says so.
    """

    dimensions: int
    recipe: Recipe
    before: TokenIds = ()
    between: TokenIds = ()
    after: TokenIds = ()
    second_type: int = 0
    pair: str | None = None
    instruction: str = ""

    def describe(self) -> str:
        """Describe the number of dimensions and the recipe in a few words."""
        return f"{self.dimensions} dimensions, {self.recipe.describe()}"


@dataclass(frozen=True, slots=True)
class EmbeddingInput:
    """The tokens of a text or a pair, special tokens included.

    first_pooled: index of the first token that is pooled. first_of_second: index of the first token of a
        pair's second text; None for a single text.
    """

    tokens: TokenIds
    first_pooled: int = 0
    first_of_second: int | None = None

    def after(self, num_tokens: int) -> "EmbeddingInput":
        """Return the input without its first num_tokens tokens."""
        second = self.first_of_second
        return EmbeddingInput(
            self.tokens[num_tokens:],
            max(0, self.first_pooled - num_tokens),
            None if second is None else max(0, second - num_tokens),
        )


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """Texts to be embedded, or pairs to be rated.

    dimensions: how many numbers of each vector are wanted; None for all.
    num_alike: leading tokens that all inputs share: at most what count_alike() returns.
    """

    id: str
    inputs: tuple[EmbeddingInput, ...]
    dimensions: int | None = None
    num_alike: int = 0


def count_alike(inputs: Sequence[EmbeddingInput]) -> int:
    """Return how many leading tokens all inputs have in common, up to MAX_ALIKE. May take long."""
    leading = [one.tokens[:MAX_ALIKE] for one in inputs]
    return count_common(min(leading), max(leading))


def count_common(one: TokenIds, other: TokenIds) -> int:
    """Return how many leading tokens two texts have in common."""
    most = min(len(one), len(other))
    return bisect_left(range(most), True, key=lambda at: one[: at + 1] != other[: at + 1])


@dataclass(frozen=True, slots=True)
class Embedded:
    """The terminal event of a request that succeeded. vectors: little-endian float32, one per input."""

    vectors: tuple[bytes, ...]
