"""Prompts of an exact length, no two of which share their first words."""

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bench.errors import BenchError

_TEXT = """
able about above across after again against air all almost along also animal answer apple area arm around
arrow ask autumn away back ball bank basket bear because bed before began behind bell below best better
between bird black blue boat body book both bottle bottom bread bridge bright bring brother brown build
busy butter call candle car carry castle cat chair change child city clean clear clock close cloud coat
cold color come corner count country cover cross dark day deep desk different door down draw dream dress
drink drive dry duck each early earth east easy edge eight empty end engine enough evening every eye face
fall family farm fast father feather field find fire first fish five floor flower fly follow food foot
forest forward found four fresh friend front fruit full garden gate gave giant glass gold good grass gray
great green ground grow half hand happy hard harvest hat head hear heavy help high hill hold home honey
horse hot hour house hundred ice idea inside iron island joy jump keep key kind king kitchen ladder lake
lamp land large last late laugh lead leaf learn left lemon letter light line lion list little long look
low machine make many map mark market meadow milk minute mirror money moon morning mother mountain mouse
mouth move music name narrow near neck nest never new next night nine north number oak ocean often old
one onion open orange order other outside over page paint paper part path pencil people piano picture
piece place plain plan plant plate play pocket point pond quick quiet rabbit rain reach read red rest
rice ring rise river road rock roof room root rope rose round row run sad sail salt same sand school sea
second seed seven shadow sheep ship shoe short show side silver simple sing sister six sky sleep slow
small smile snow soft song sound south space spoon spring square stair star start station still stone
story street strong summer sun sweet swim table tail tall teach ten thick thin thing third three thunder
tiger time together top tower town train tree true turn twenty two under until valley village voice wait
walk wall warm watch water wave way week well west wheat wheel where white wide wild wind window winter
wise wolf wood word work world write yard year yellow young zebra
"""
_WORDS = _TEXT.split()

_OPENING_WORDS = 4
_TRIES = 40


class ChatTokenizer(Protocol):
    """The part of engine.model.tokenizer.Tokenizer that is used here."""

    def render_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        """Return the token ids of the messages up to where the answer begins."""
        ...


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

    def __init__(self, tokenizer: ChatTokenizer, num_tokens: int, seed: int) -> None:
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
        best = None
        for _ in range(_TRIES):
            words, prompt = self._fill()
            opening = tuple(words[:_OPENING_WORDS])
            if not words or opening in self._openings:
                continue
            if best is None or len(prompt.ids) > len(best[1].ids):
                best = opening, prompt
            if len(prompt.ids) == self.num_tokens:
                break
        if best is None:
            raise BenchError(f"no more distinct prompts of {self.num_tokens} tokens; use longer prompts")
        self._openings.add(best[0])
        return best[1]

    def _fill(self) -> tuple[list[str], Prompt]:
        """Choose as many random words as fit, the last one so that the length is exact if possible."""
        # No word is shorter than a token.
        words = self._random.choices(_WORDS, k=self.num_tokens)
        fitting = bisect_right(
            range(1, len(words) + 1), self.num_tokens, key=lambda n: self._length(words[:n])
        )
        words = words[:fitting]
        prompt = self._prompt(words)
        for last in self._random.sample(_WORDS, _TRIES):
            if len(prompt.ids) == self.num_tokens:
                break
            longer = self._prompt([*words, last])
            if len(prompt.ids) < len(longer.ids) <= self.num_tokens:
                words, prompt = [*words, last], longer
        return words, prompt

    def _length(self, words: Sequence[str]) -> int:
        return len(self._prompt(words).ids)

    def _prompt(self, words: Sequence[str]) -> Prompt:
        text = " ".join(words)
        ids = self._tokenizer.render_chat([{"role": "user", "content": text}])
        return Prompt(text, tuple(ids))
