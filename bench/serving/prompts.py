"""Prompts of an exact length, no two of which share their first words."""

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.errors import BenchError
from bench.workloads.words import ADJECTIVES, NOUNS, VERBS

if TYPE_CHECKING:
    from engine.model.tokenizer import Tokenizer

_SHORT = ("able", "air", "all", "arm", "ask", "ball", "bed", "bird", "boy", "day", "deep", "dog", "ear")
_WORDS = [*NOUNS, *ADJECTIVES, *VERBS, *_SHORT]
_OPENING_WORDS, _TRIES = 4, 80


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user message, and its token ids with the chat template around it."""

    text: str
    ids: tuple[int, ...]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of an OpenAI request."""
        return [{"role": "user", "content": self.text}]


class PromptMaker:
    """Makes prompts of random words, the same ones for the same seed.

    num_tokens: length of the whole prompt with the chat template, as servers report it. If no text of exactly
    this length is found, the closest shorter one is used.
    No two prompts begin with the same words, so a prefix cache can only reuse the chat template.
    Raises BenchError if the template leaves no room for words, or no unused first words are left.
    """

    def __init__(self, tokenizer: "Tokenizer", num_tokens: int, seed: int) -> None:
        self.num_tokens = num_tokens
        self._tokenizer = tokenizer
        self._random = random.Random(seed)
        self._openings: set[tuple[str, ...]] = set()
        template = len(self._prompt([]).ids)
        if num_tokens <= template:
            raise BenchError(
                f"--prompt-tokens is {num_tokens}, but the chat template alone takes {template}; ask for more"
            )

    def make(self) -> Prompt:
        """Return a prompt that begins unlike all earlier ones."""
        best: tuple[tuple[str, ...], Prompt] | None = None
        for _ in range(_TRIES):
            words, prompt = self._fill()
            opening = tuple(words[:_OPENING_WORDS])
            is_new = bool(words) and opening not in self._openings
            if is_new and (best is None or len(prompt.ids) > len(best[1].ids)):
                best = opening, prompt
            if best and len(best[1].ids) == self.num_tokens:
                break
        if best is None:
            raise BenchError(f"no more distinct prompts of {self.num_tokens} tokens; use longer prompts")
        self._openings.add(best[0])
        return best[1]

    def _fill(self) -> tuple[list[str], Prompt]:
        """Choose as many random words as fit, the last one so that the length is exact if possible."""
        # No word is shorter than a token.
        words = self._random.choices(_WORDS, k=self.num_tokens)
        counts = range(1, len(words) + 1)
        words = words[: bisect_right(counts, self.num_tokens, key=lambda n: len(self._prompt(words[:n]).ids))]
        prompt = self._prompt(words)
        for last in self._random.sample(_WORDS, _TRIES):
            if len(prompt.ids) == self.num_tokens:
                break
            longer = self._prompt([*words, last])
            if len(prompt.ids) < len(longer.ids) <= self.num_tokens:
                words, prompt = [*words, last], longer
        return words, prompt

    def _prompt(self, words: Sequence[str]) -> Prompt:
        text = " ".join(words)
        return Prompt(text, tuple(self._tokenizer.render_chat([{"role": "user", "content": text}])))
