"""The parts of a workload: chats, and the turns of each chat, requested one after the other; and a user's."""

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server.errors import BadRequestError
from server.requests.chat import ChatRequest
from server.requests.function_tools import FunctionTool
from server.requests.messages import Message as ReadMessage
from server.validation.field_errors import validate

if TYPE_CHECKING:
    from engine.text.tokenizer import Tokenizer

Message = dict[str, Any]
"""One message in OpenAI's format: role, content and optional fields."""

Grow = Callable[[Callable[[int], str], int], int]
"""grow(text_of, max_count) returns the count in [1, max_count] that comes closest to the requested length.

text_of(count) returns a text, which must not get shorter as count grows.
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. The answers in its history are references, so it is the same for all models.

    messages: the whole chat up to the message to answer; empty if text is given.
    reference: the right answer; None if there is no single right answer.
    is_measured: False for a turn that only fills the drafters' tables.
    tools: in OpenAI's format.
    temperature: of the sampling.
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
        return [read.for_template() for read in map(ReadMessage.model_validate, self.messages)]

    def tools_for_template(self) -> list[dict[str, Any]]:
        """Return the tools as chat templates expect them."""
        return [tool.function.for_template() for tool in map(FunctionTool.model_validate, self.tools)]


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


def assistant(text: str) -> Message:
    """Make an assistant message."""
    return {"role": "assistant", "content": text}


def single_turn(text: str, reference: str | None = None, **more: Any) -> list[Turn]:
    """Make a chat of one user message."""
    return [Turn((user(text),), reference, **more)]


def conversation(exchanges: Iterable[tuple[str, str]], context: str = "") -> list[Turn]:
    """Make a chat of requests and their right answers. context: follows the first request."""
    messages: tuple[Message, ...] = ()
    turns: list[Turn] = []
    for request, answer in exchanges:
        messages = (*messages, user(request if turns else f"{request}{context}"))
        turns.append(Turn(messages, answer))
        messages = (*messages, assistant(answer))
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


PLAIN = ("temperature", "max_tokens")
READ = (*PLAIN, "messages", "tools", "max_completion_tokens", "response_format")
"""The fields that are read of a request without messages, and of one with messages."""


def read_prompts(path: Path) -> list[Chat]:
    """Read JSON lines, each the body of a chat completion request or as `reprise serve --record` writes it.

    These fields are read, all but messages optional: messages, tools, temperature (default here: 0),
    max_tokens or max_completion_tokens, response_format with a JSON schema, and "output", the text of the
    right answer. If the last message is the assistant's, it is the right answer. A line with a text "prompt"
    and no messages is sent without a chat template. A line whose messages begin with all messages of an
    earlier line is the next turn of that line's chat. A line of Spec-Bench's questions, with "turns" and a
    "category", is a chat of its first turn, and the category its workload.

    Raises OSError if the file cannot be read, ValueError with file and line number if a line is invalid.
    """
    chats: list[list[Turn]] = []
    categories: list[Chat] = []
    continuable: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            parsed = json.loads(line)
            if isinstance(parsed, dict) and isinstance(parsed.get("turns"), list) and parsed["turns"]:
                # Later turns would need the model's own answers.
                turn = _turn({"messages": [{"role": "user", "content": parsed["turns"][0]}]})
                categories.append(Chat(str(parsed.get("category") or path.stem), (turn,)))
                continue
            turn = _turn(parsed)
        except RecursionError:
            raise ValueError(f"{path}: line {number} is nested too deep") from None
        except (UnicodeDecodeError, json.JSONDecodeError) as fault:
            raise ValueError(f"{path}: line {number} is not JSON: {fault}") from None
        except ValueError as fault:
            raise ValueError(f"{path}: line {number} is not a chat: {fault}") from None
        messages = tuple(json.dumps(message, sort_keys=True) for message in turn.messages)
        prefixes = (messages[:count] for count in range(len(messages) - 1, 0, -1))
        at = next((continuable.pop(one) for one in prefixes if one in continuable), None)
        if at is None:
            at = len(chats)
            chats.append([])
        chats[at].append(turn)
        if messages:
            continuable[messages] = at
    if not chats and not categories:
        raise ValueError(f"{path}: the file contains no chats")
    return [*(Chat(path.stem, tuple(turns)) for turns in chats), *categories]


def _turn(line: object) -> Turn:
    """Make the turn of a line. Raises ValueError."""
    given = line if isinstance(line, dict) else {}
    known = {name: given[name] for name in READ if name in given}
    reference, text = given.get("output"), given.get("prompt")
    if not isinstance(reference, str | None):
        raise ValueError("output is not text")
    if is_plain := "messages" not in known and isinstance(text, str) and bool(text):
        known = {name: known[name] for name in PLAIN if name in known} | {"messages": [user(text)]}
    if not isinstance(known.get("messages"), list):
        raise ValueError('expected an object with a list "messages" or a text "prompt"')
    try:
        body = validate(known, ChatRequest)
    except BadRequestError as fault:
        raise ValueError(fault.message) from None
    messages = tuple(known["messages"])
    if body.messages[-1].role == "assistant":
        if len(messages) == 1:
            raise ValueError("it contains an answer but no request")
        *_, last = body.messages
        messages, reference = messages[:-1], last.content if reference is None else reference
    return Turn(
        () if is_plain else messages, reference, tools=tuple(known.get("tools") or ()),
        temperature=body.temperature if known.get("temperature") is not None else 0.0,
        schema=_schema(known.get("response_format")), max_tokens=body.requested_max_tokens,
        text=text if is_plain else None,
    )  # fmt: skip


def _schema(form: dict[str, Any] | None) -> str | None:
    """Return the JSON schema of a valid response_format."""
    kind = (form or {}).get("type")
    if form is None or kind not in ("json_object", "json_schema"):
        return None
    schema = {"type": "object"} if kind == "json_object" else form["json_schema"].get("schema")
    return None if schema is None else json.dumps(schema)
