"""Completions that say the prompt before the answer."""

from collections.abc import Sequence

from engine.request import Delta, Finished
from server.output.parts import MakeParser, Part, PlainParser, PromptPart


class EchoParser(PlainParser):
    """Reads a choice that begins with its prompt.

    prompt: its text. wants_logprobs: the first delta brings its tokens' log probabilities.
    """

    def __init__(self, prompt: str, wants_logprobs: bool) -> None:
        self._prompt = prompt
        self._wants_logprobs = wants_logprobs
        self._has_begun = False

    def read(self, delta: Delta) -> list[Part]:
        """See Reader."""
        if self._has_begun:
            return super().read(delta)
        self._has_begun = True
        if self._wants_logprobs:
            return [PromptPart(self._prompt, delta.logprobs)]
        return [PromptPart(self._prompt), *super().read(delta)]

    def end(self, finished: Finished) -> list[Part]:
        """See Reader."""
        begun: list[Part] = [] if self._has_begun else [PromptPart(self._prompt)]
        return begun + super().end(finished)


def echo_parsers(prompts: Sequence[str], n: int, wants_logprobs: bool) -> MakeParser:
    """What makes the readers of all choices, in their order: n of the first prompt, then of the next."""
    texts = iter([prompt for prompt in prompts for _ in range(n)])
    return lambda: EchoParser(next(texts), wants_logprobs)
