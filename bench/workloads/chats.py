"""The parts of a workload: chats, and the turns of each chat, requested one after the other."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from server.requests.function_tools import FunctionTool
from server.requests.messages import Message as ReadMessage

if TYPE_CHECKING:
    from engine.text.tokenizer import Tokenizer

Message = dict[str, Any]
"""One message in OpenAI's format: role, content and optional fields."""

Grow = Callable[[Iterator[Any], Callable[[list[Any]], str]], list[Any]]
"""grow(items, text_of) returns as many items as make the first prompt about as long as requested."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. The answers in its history are references, so it is the same for all models.

    messages: the whole chat up to the message to answer; empty if text is given.
    reference: the right answer; None if there is no single right answer.
    is_measured: False for a turn that only fills the drafters' tables.
    tools: in OpenAI's format.
    num_allowed: if not 0, tokens are drawn uniformly from this many token ids.
    is_endless: end tokens are forbidden, so the answer has the maximum length.
    schema: JSON schema that constrains the answer.
    max_tokens: limit in the request itself; None: the benchmark chooses.
    text: a prompt that is used as it is, without a chat template.
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
        """Return the messages as chat templates expect them; OpenAI's format has tool arguments as text."""
        return [ReadMessage.model_validate(message).for_template() for message in self.messages]

    def tools_for_template(self) -> list[dict[str, Any]]:
        """Return the tools as chat templates expect them."""
        return [FunctionTool.model_validate(tool).function.for_template() for tool in self.tools]


@dataclass(frozen=True, slots=True)
class Chat:
    """Turns that are requested in order. Drafter tables are cleared before each chat, not between turns.

    prompt_tokens: approximate length of the first prompt; None if it cannot be chosen.
    """

    workload: str
    turns: tuple[Turn, ...]
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """A family of generated chats.

    summary: a few words for help texts.
    make: returns the turns of one chat; all randomness comes from the rng.
    prompt_tokens: default lengths of first prompts; () if the length cannot be chosen.
    """

    name: str
    summary: str
    make: Callable[[random.Random, Grow], Sequence[Turn]]
    prompt_tokens: tuple[int, ...] = ()


def user(text: str) -> Message:
    """Make a user message."""
    return {"role": "user", "content": text}


def single_turn(text: str, reference: str | None = None, **more: Any) -> list[Turn]:
    """Make a chat of one user message."""
    return [Turn((user(text),), reference, **more)]


def conversation(exchanges: Iterable[tuple[str, str]], context: str) -> list[Turn]:
    """Make a chat of requests and their right answers. context: follows the first request."""
    messages: tuple[Message, ...] = ()
    turns: list[Turn] = []
    for request, answer in exchanges:
        messages = (*messages, user(request if turns else f"{request}\n\n{context}"))
        turns.append(Turn(messages, answer))
        messages = (*messages, {"role": "assistant", "content": answer})
    return turns


def render(
    tokenizer: "Tokenizer", messages: str | Sequence[Message], tools: Sequence[dict[str, Any]] = ()
) -> tuple[int, ...]:
    """Return the token ids of a user message or a chat; of its plain text if there is no chat template.

    messages, tools: as chat templates take them, see Turn.for_template().
    """
    messages = [user(messages)] if isinstance(messages, str) else messages
    if not tokenizer.has_chat_template:
        return tuple(tokenizer.encode("\n\n".join(one.get("content") or "" for one in messages)))
    return tuple(tokenizer.render_chat(list(messages), list(tools) or None))


def render_turn(tokenizer: "Tokenizer", turn: Turn) -> tuple[int, ...]:
    """Return the token ids of a turn's prompt, equal to what the server makes of the same request."""
    if turn.text is None:
        return render(tokenizer, turn.for_template(), turn.tools_for_template())
    whole, bare = tokenizer.encode(turn.text), tokenizer.encode_answer(turn.text)
    # The text of a recorded prompt already begins with the special tokens of a prompt.
    return tuple(bare if whole[1:] == bare and whole[:1] == bare[:1] else whole)
