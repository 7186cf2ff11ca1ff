"""Echo the prompt at the start of a completion."""

from collections.abc import Sequence

from engine.request import Delta, Finished
from server.output.parts import MakeParser, Part, PlainParser, PromptPart


class EchoParser(PlainParser):
    """Parser of a choice that starts with its prompt.

    prompt: the prompt's text.
    wants_logprobs: the first delta then carries the log probabilities of the prompt's tokens.
    """

    def __init__(self, prompt: str, wants_logprobs: bool) -> None:
        self._prompt = prompt
        self._wants_logprobs = wants_logprobs
        self._has_started = False

    def read(self, delta: Delta) -> list[Part]:
        """See OutputParser."""
        if self._has_started:
            return super().read(delta)
        self._has_started = True
        if self._wants_logprobs:
            return [PromptPart(self._prompt, delta.logprobs)]
        return [PromptPart(self._prompt), *super().read(delta)]

    def end(self, finished: Finished) -> list[Part]:
        """See OutputParser."""
        prompt: list[Part] = [] if self._has_started else [PromptPart(self._prompt)]
        return prompt + super().end(finished)


def echo_parsers(prompts: Sequence[str], n: int, wants_logprobs: bool) -> MakeParser:
    """Return a function that makes the choices' parsers in order, n for each prompt."""
    texts = iter([prompt for prompt in prompts for _ in range(n)])
    return lambda: EchoParser(next(texts), wants_logprobs)
