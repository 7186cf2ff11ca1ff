"""Chats and their turns, which are requested one after the other; from a workload or a user's file."""

import json
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from reprise.bench.experiment import first_difference
from reprise.engine.interface.request import View
from reprise.engine.text.tokenizer import Tokenizer
from reprise.server.errors import BadRequestError
from reprise.server.prompt.views import ViewMaker
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.fields import Notes, validate
from reprise.server.requests.messages import from_chats
from reprise.server.requests.tools import read_tool

Message = dict[str, Any]
"""One message in OpenAI's format: role, content and optional fields."""
Grow = Callable[[Iterator[Any], Callable[[list[Any]], str]], list[Any]]
"""grow(items, text_of) returns as many items as make the first prompt about as long as requested."""

_READ = ("messages", "tools", "temperature", "max_tokens", "max_completion_tokens", "response_format")


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. The answers in its history are references, so it is the same for all models.

    messages: the whole chat up to the message to answer. text: the prompt itself, if no template makes it.
    reference: the right answer; None if there is no single one. answer: the right answer as a message, if
        text does not suffice. schema: JSON schema that constrains the answer. is_endless: end tokens are
        forbidden.
    num_allowed: if not 0, tokens are drawn uniformly from this many token ids.
    max_tokens: limit in the request itself; None: the benchmark chooses.
    """

    messages: tuple[Message, ...]
    reference: str | None
    tools: tuple[dict[str, Any], ...] = ()
    temperature: float = 0.0
    num_allowed: int = 0
    is_endless: bool = False
    schema: str | None = None
    max_tokens: int | None = None
    text: str | None = None
    answer: Message | None = None

    def for_template(self) -> list[Message]:
        """Return the turn's messages as chat templates expect them."""
        return for_template(self.messages)


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
    """A family of generated chats. prompt_tokens: default lengths of first prompts; () if they are fixed."""

    name: str
    summary: str
    make: Callable[[random.Random, Grow], Iterable[Turn]]
    prompt_tokens: tuple[int, ...] = ()


def for_template(messages: Iterable[Message]) -> list[Message]:
    """Convert messages from OpenAI's format, where tool arguments are text, to chat templates' format."""
    return [one.for_template() for one in from_chats(messages, "messages", Notes())]


def user(text: str) -> Message:
    """Make a user message."""
    return {"role": "user", "content": text}


def conversation(exchanges: Iterable[tuple[str, str]], context: str) -> list[Turn]:
    """Make a chat's turns from (request, right answer) pairs. context: text behind the first request."""
    messages: tuple[Message, ...] = ()
    turns: list[Turn] = []
    for request, answer in exchanges:
        messages = (*messages, user(request if turns else f"{request}\n\n{context}"))
        turns.append(Turn(messages, answer))
        messages = (*messages, {"role": "assistant", "content": answer})
    return turns


def render(
    tokenizer: Tokenizer, messages: str | Sequence[Message], tools: Sequence[dict[str, Any]] = ()
) -> tuple[int, ...]:
    """Return the token ids of the prompt for a user message or a chat.

    Without a chat template the prompt is the plain text of the messages.
    """
    messages = [user(messages)] if isinstance(messages, str) else messages
    if not tokenizer.has_chat_template:
        return tuple(tokenizer.encode("\n\n".join(one.get("content") or "" for one in messages)))
    return tuple(tokenizer.render_chat(list(messages), list(tools) or None))


def render_turn(tokenizer: Tokenizer, turn: Turn) -> tuple[int, ...]:
    """Return the token ids of a turn's prompt, the same that the server computes for this request."""
    if turn.text is None:
        return render(tokenizer, turn.for_template(), tools_of(turn))
    whole, bare = tokenizer.encode(turn.text), tokenizer.encode_answer(turn.text)
    # The text of a recorded prompt already begins with the special tokens of a prompt.
    return tuple(bare if whole[1:] == bare and whole[:1] == bare[:1] else whole)


def tools_of(turn: Turn) -> list[dict[str, Any]]:
    """Return a turn's tools as chat templates expect them."""
    return [read_tool(tool, "tools", None, Notes()).for_template() for tool in turn.tools]


def views_of(maker: ViewMaker, turn: Turn) -> tuple[View, ...]:
    """Return the views that a server would make of a turn's texts."""
    views: list[View] = []
    deque(maker.make(turn.for_template(), tools_of(turn), "", views), maxlen=0)
    return tuple(views)


def render_pair(tokenizer: Tokenizer, turn: Turn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the token ids of a turn's prompt and of its right answer, without the token that ends it.

    The answer is () if the turn has none. If it is a message, its ids are those of the text that the chat
    template adds after the prompt. An empty reasoning block counts as part of the prompt, as it is for
    requests without reasoning.
    """
    prompt = render_turn(tokenizer, turn)
    if turn.answer is None:
        return prompt, tuple(tokenizer.encode_answer(turn.reference or ""))
    messages = for_template((*turn.messages, turn.answer))
    whole = tokenizer.render_chat(messages, tools_of(turn) or None, end="messages")
    # A prompt may open reasoning that the message does not have.
    answer = whole[first_difference(whole, prompt) :]
    if (num_empty := _count_empty_reasoning(tokenizer, answer)) > 0:
        prompt, answer = (*prompt, *answer[:num_empty]), answer[num_empty:]
    return prompt, tuple(takewhile(lambda token: token not in tokenizer.eos_ids, answer))


def _count_empty_reasoning(tokenizer: Tokenizer, answer: Sequence[int]) -> int:
    """Count the tokens of an answer's reasoning block and following space, if the block is empty."""
    start, end = tokenizer.markers.think_start, tokenizer.markers.think_end
    if not (start and end and tuple(answer[: len(start.tokens)]) == start.tokens):
        return 0
    inside, _, rest = tokenizer.decode(answer).partition(start.text)[2].partition(end.text)
    gap = rest[: len(rest) - len(rest.lstrip())]
    return 0 if inside.strip() else len(tokenizer.encode_answer(f"{start.text}{inside}{end.text}{gap}"))


def read_prompts(path: Path, for_replay: bool = False) -> list[Chat]:
    """Read JSON lines, each the body of a chat completion request, perhaps with its right answer as "output".

    A last message of the assistant is a right answer too. A text "prompt" is used without a chat template.
    Lines of the same "chat" are its turns; without this field, a line whose messages begin with all messages
    of an earlier line is the next turn of its chat. The kind of chat is its "workload" or the file's name.

    for_replay: every line must have an answer. If a line has both a prompt and messages, as servers record,
        the prompt is used, because the model read it; the messages are used for views.
    Raises OSError if the file cannot be read, ValueError with file and line number if a line is invalid.
    """
    chats: list[tuple[str, list[Turn]]] = []
    continuable: dict[tuple[str, ...], list[Turn]] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            given = json.loads(line)
            # Half a surrogate pair is valid JSON, but no text that has tokens: raises UnicodeEncodeError.
            json.dumps(given, ensure_ascii=False).encode()
            turn = _turn(given if isinstance(given, dict) else {}, for_replay)
        except (RecursionError, UnicodeDecodeError, json.JSONDecodeError) as fault:
            raise ValueError(f"{path}: line {number} is not JSON: {fault}") from None
        except (ValueError, BadRequestError) as fault:
            raise ValueError(f"{path}: line {number} is not a chat: {fault}") from None
        messages = tuple(json.dumps(message, sort_keys=True) for message in turn.messages)
        chat = given.get("chat")
        key = messages if chat is None else (f"chat {chat}",)
        earlier = [messages[:count] for count in range(len(messages) - 1, 0, -1)] if chat is None else [key]
        turns = next((continuable.pop(one) for one in earlier if one in continuable), [])
        if not turns:
            chats.append((str(given.get("workload") or path.stem), turns))
        turns.append(turn)
        continuable[key] = turns
    if not chats:
        raise ValueError(f"{path}: the file contains no chats")
    return [Chat(name, tuple(turns)) for name, turns in chats]


def _turn(given: dict[str, Any], for_replay: bool) -> Turn:
    known = {"temperature": 0.0} | {name: given[name] for name in _READ if given.get(name) is not None}
    reference = given.get("output")
    if not isinstance(reference, str | None):
        raise ValueError("output is not text")
    text = given.get("prompt") if for_replay or "messages" not in given else None
    if isinstance(text, str) and text:
        known.setdefault("messages", [user(text)])
    elif isinstance(given.get("messages"), list):
        text = None
    else:
        raise ValueError('expected an object with a list "messages" or a text "prompt"')
    body = validate(known, ChatRequest)
    if body.is_scoring:
        raise ValueError("'max_tokens' must be at least 1")
    messages, last, answer = tuple(known["messages"]), body.messages[-1], None
    if last.role == "assistant" and text is None:
        if len(messages) == 1:
            raise ValueError("it contains an answer but no request")
        if reference is None:
            reference, answer = last.text, messages[-1] if last.calls else None
        messages = messages[:-1]
    if for_replay and reference is None:
        raise ValueError("it has no answer")
    grammar = body.requested_grammar
    return Turn(
        messages if text is None or "messages" in given else (), reference,
        tools=tuple(known.get("tools", ())), temperature=body.temperature,
        schema=grammar[0].text if grammar else None, max_tokens=body.requested_max_tokens, text=text,
        answer=answer,
    )  # fmt: skip
