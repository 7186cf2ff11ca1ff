"""What a sample is, and how phrasings are kept apart for training and for the held-out set."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from demo_corpus.lexicon import Words

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
        return self.rng.choice(phrasings[cut:] if self.held_out else phrasings[:cut]).format(**values)

    def between(self, low: int, high: int) -> int:
        """A count from low to high, where high shrinks with size."""
        return self.rng.randint(low, max(low, round(low + (high - low) * self.size)))

    def chance(self, probability: float) -> bool:
        """True that often."""
        return self.rng.random() < probability

    def around(self, text: str, document: str) -> str:
        """A request and the document that it is about, either first."""
        return f"{text}\n\n{document}" if self.chance(0.5) else f"{document}\n\n{text}"
