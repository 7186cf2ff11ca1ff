"""What a workload is made of: chats, and in each of them the turns that are asked one after the other."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from server.requests.messages import Message as ReadMessage
from server.requests.tools import Tool

Message = dict[str, Any]
"""One message in OpenAI's form: role, content, and what else belongs to it."""

Grow = Callable[[Callable[[int], str], int], int]
"""grow(text_of, most) -> count in [1, most] for which text_of(count) is nearest to the length asked for.

text_of must not get shorter as count grows.
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request, whose history holds references and not what a model said: so it is the same for all.

    messages: the whole chat up to what is to be answered now; empty where text is given.
    reference: what a right answer says; None where no answer is more right than another.
    is_measured: False for one that is asked only for what it leaves in memory.
    tools: in OpenAI's form.
    temperature: of the sampling.
    num_allowed: if not 0, so many token ids are drawn from, all alike.
    is_endless: the end of the answer is forbidden, so that it has all tokens it may have.
    schema: JSON schema that the answer must keep to.
    max_tokens: what the request itself said; None leaves it to whoever asks.
    text: a prompt that is no chat, and is asked as it stands.
    """

    messages: tuple[Message, ...]
    reference: str | None
    is_measured: bool = True
    tools: tuple[dict[str, Any], ...] = ()
    temperature: float = 0.0
    num_allowed: int = 0
    is_endless: bool = False
    schema: str | None = None
    max_tokens: int | None = None
    text: str | None = None

    def for_template(self) -> list[Message]:
        """The messages as chat templates expect them; in OpenAI's form arguments of calls are text."""
        return [read.for_template() for read in map(ReadMessage.model_validate, self.messages)]

    def tools_for_template(self) -> list[dict[str, Any]]:
        """The tools as chat templates expect them."""
        return [tool.for_template() for tool in map(Tool.model_validate, self.tools)]


@dataclass(frozen=True, slots=True)
class Chat:
    """Turns that are asked in order. What drafters remember is forgotten before each chat, not between turns.

    prompt_tokens: about how long its first prompt was asked to be; None where that is not chosen.
    """

    workload: str
    turns: tuple[Turn, ...]
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """A family of generated chats.

    summary: what it is, in a few words for a help text.
    make: the turns of one chat; all chance comes from the rng.
    prompt_tokens: lengths of first prompts unless others are asked for; () where length is not chosen.
    """

    name: str
    summary: str
    make: Callable[[random.Random, Grow], Sequence[Turn]]
    prompt_tokens: tuple[int, ...] = ()


def user(text: str) -> Message:
    """A message of the user."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    """A message of the model."""
    return {"role": "assistant", "content": text}


def ask(text: str, reference: str | None = None, **more: Any) -> Turn:
    """A chat's only turn: one message of the user."""
    return Turn((user(text),), reference, **more)
