"""What a sample is, and how phrasings are kept apart for training and for the held-out set."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from demo_corpus.lexicon import Words

ORDERS = set(
    "Rename Change Replace Use Call Set Make Update Add Give Document Write Fix Quote Find Repeat Copy Tell "
    "Look Return Show List Name Answer Fill".split()
)
BEFORE = [
    "Please ",
    "Could you ",
    "Would you ",
    "I would like you to ",
    "Now ",
    "Next, ",
    "Then ",
    "You should ",
]
BEFORE += ["Can you ", "Please do this: ", "Your task: ", "I want you to ", "Kindly ", "Let us "]
OPENINGS = ["Hello. ", "Hi! ", "OK. ", "Thanks. ", "One more thing. ", "Question: ", "Task: "]
BEHIND = [" Thanks.", " Thank you.", " Please.", " That is all.", " Be exact.", " Nothing else.", " Now."]

Message = dict[str, Any]


@dataclass
class Conversation:
    """Chat messages in OpenAI's form; every assistant message in it is an answer to learn."""

    family: str
    messages: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)

    def user(self, text: str) -> "Conversation":
        """Append what the user says."""
        self.messages.append({"role": "user", "content": text})
        return self

    def assistant(self, text: str) -> "Conversation":
        """Append the right answer."""
        self.messages.append({"role": "assistant", "content": text})
        return self

    def call(self, name: str, arguments: dict[str, Any]) -> "Conversation":
        """Append a tool call as the right answer."""
        function = {"name": name, "arguments": arguments}
        self.messages.append(
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        )
        return self

    def tool(self, result: dict[str, Any]) -> "Conversation":
        """Append what a tool returned."""
        self.messages.append({"role": "tool", "content": json.dumps(result)})
        return self


@dataclass
class Source:
    """One stream of samples. size in [0, 1] scales files, records and passages from tiny to full."""

    rng: random.Random
    held_out: bool = False
    size: float = 1.0

    def __post_init__(self) -> None:
        self.words = Words(self.rng)

    def say(self, phrasings: Sequence[str], **values: Any) -> str:
        """Fill in one of the phrasings. The last quarter of them (at least two) is never trained on."""
        cut = len(phrasings) - max(2, len(phrasings) // 4)
        if self.held_out:
            return self.rng.choice(phrasings[cut:]).format(**values)
        return self._vary(self.rng.choice(phrasings[:cut])).format(**values)

    def _vary(self, phrasing: str) -> str:
        """Now and then put names in backticks, a few words in front, a few behind."""
        if self.chance(0.25):
            phrasing = re.sub(r"(?<!`)\{(old|new|name)\}(?!`)", r"`{\1}`", phrasing)
        if self.chance(0.35) and phrasing.split(maxsplit=1)[0] in ORDERS:
            phrasing = self.rng.choice(BEFORE) + phrasing[0].lower() + phrasing[1:]
        elif self.chance(0.1) and not phrasing.startswith("{"):
            phrasing = self.rng.choice(OPENINGS) + phrasing
        return phrasing + self.rng.choice(BEHIND) if self.chance(0.2) else phrasing

    def between(self, low: int, high: int) -> int:
        """A count from low to high, where high shrinks with size."""
        return self.rng.randint(low, max(low, round(low + (high - low) * self.size)))

    def chance(self, probability: float) -> bool:
        """True that often."""
        return self.rng.random() < probability

    def around(self, text: str, document: str) -> str:
        """A request and the document that it is about, either first."""
        return f"{text}\n\n{document}" if self.chance(0.5) else f"{document}\n\n{text}"
