"""Echo the prompt at the start of a completion."""

from collections.abc import Sequence

from engine.request import Delta, Finished
from server.output.parts import EndPart, MakeParser, Part, PlainParser, PromptPart


class EchoParser(PlainParser):
    """Parser of a choice that starts with its prompt. All of the prompt's text is in its first part.

    prompt: the prompt's text. is_alone: the prompt is all that is returned.
    """

    def __init__(self, prompt: str, is_alone: bool = False) -> None:
        self._prompt = prompt
        self._is_alone = is_alone
        self._has_started = False

    def read(self, delta: Delta) -> list[Part]:
        """See OutputParser."""
        if delta.is_prompt:
            text = "" if self._has_started else self._prompt
            self._has_started = True
            return [PromptPart(text, delta.logprobs)]
        return self._start() + ([] if self._is_alone else super().read(delta))

    def end(self, finished: Finished) -> list[Part]:
        """See OutputParser."""
        if self._is_alone:
            return [*self._start(), EndPart("length")]
        return self._start() + super().end(finished)

    def _start(self) -> list[Part]:
        """Return the prompt, unless it was returned before."""
        if self._has_started:
            return []
        self._has_started = True
        return [PromptPart(self._prompt)]


def echo_parsers(prompts: Sequence[str], n: int, is_alone: bool = False) -> MakeParser:
    """Return a function that makes the choices' parsers in order, n for each prompt. See EchoParser."""
    texts = iter([prompt for prompt in prompts for _ in range(n)])
    return lambda: EchoParser(next(texts), is_alone)
