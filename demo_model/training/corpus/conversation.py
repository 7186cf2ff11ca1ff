"""Build samples, and keep the phrasings for training and for the held-out set apart."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from reprise.demo_model.training.corpus.lexicon import Words

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
    """Chat messages in OpenAI's format; the model learns every assistant message."""

    family: str
    messages: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)

    def user(self, text: str) -> "Conversation":
        """Append a user message."""
        self.messages.append({"role": "user", "content": text})
        return self

    def assistant(self, text: str) -> "Conversation":
        """Append the right answer as an assistant message."""
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
        """Append a tool's result."""
        self.messages.append({"role": "tool", "content": json.dumps(result)})
        return self


@dataclass
class Source:
    """A source of random choices for samples.

    held_out: use the phrasings that are never trained on. size: scales files, records and passages, from tiny
    (0) to full (1).
    """

    rng: random.Random
    held_out: bool = False
    size: float = 1.0

    def __post_init__(self) -> None:
        self.words = Words(self.rng)

    def say(self, phrasings: Sequence[str], **values: Any) -> str:
        """Fill in one of the phrasings. The last quarter of them, at least two, is held out from training."""
        cut = len(phrasings) - max(2, len(phrasings) // 4)
        if self.held_out:
            return self.rng.choice(phrasings[cut:]).format(**values)
        return self._vary(self.rng.choice(phrasings[:cut])).format(**values)

    def _vary(self, phrasing: str) -> str:
        """Sometimes put names in backticks, or add a few words at the start or the end."""
        if self.chance(0.25):
            phrasing = re.sub(r"(?<!`)\{(old|new|name)\}(?!`)", r"`{\1}`", phrasing)
        if self.chance(0.35) and phrasing.split(maxsplit=1)[0] in ORDERS:
            phrasing = self.rng.choice(BEFORE) + phrasing[0].lower() + phrasing[1:]
        elif self.chance(0.1) and not phrasing.startswith("{"):
            phrasing = self.rng.choice(OPENINGS) + phrasing
        return phrasing + self.rng.choice(BEHIND) if self.chance(0.2) else phrasing

    def between(self, low: int, high: int) -> int:
        """Return a random count from low to high, where high shrinks with size."""
        return self.rng.randint(low, max(low, round(low + (high - low) * self.size)))

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.rng.random() < probability

    def around(self, text: str, document: str) -> str:
        """Join a request and its document, in random order."""
        return f"{text}\n\n{document}" if self.chance(0.5) else f"{document}\n\n{text}"
