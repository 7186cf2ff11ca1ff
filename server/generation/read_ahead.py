"""Render the prompt that will follow an answer, as far as it is certain, for the engine to read ahead."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil

from reprise.config.settings import Settings
from reprise.engine.interface.embeddings import count_common
from reprise.engine.interface.request import GenerationRequest, Sampling
from reprise.server.errors import BadRequestError
from reprise.server.output.parts import ChoiceOutput
from reprise.server.prompt.encoder import encode_chat
from reprise.server.prompt.images import Seen
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.fields import Notes
from reprise.server.requests.messages import Call, Message, arguments_of

if TYPE_CHECKING:
    from reprise.engine.generating.generating_engine import GeneratingEngine

UNKNOWN = ("a", "1")
"""Texts in place of what a client will send. What the prompts with both have in common is certain."""


def may_read_ahead(settings: Settings) -> bool:
    """Whether prompts are read ahead now: with "auto", not on a battery."""
    if settings.read_ahead != "auto":
        return settings.read_ahead != "off"
    try:
        battery = psutil.sensors_battery()
    # A container may lack the folder of batteries.
    except (OSError, AttributeError):
        return True
    return battery is None or battery.power_plugged is not False


def expected_prompts(
    settings: Settings, engine: "GeneratingEngine", body: ChatRequest, seen: Seen, output: ChoiceOutput
) -> list[GenerationRequest]:
    """Return requests for the certain part of the prompts that will follow a conversation's answer.

    The first prompt is the next one: the answer as the client will send it back, then results of its calls,
    or words of the user. --read-ahead turn adds that of the user's next words after an answer with calls:
    some templates leave the turn's thoughts out then.
    seen: the conversation. output: its answer. Blocks, as rendering does.
    """
    if not may_read_ahead(settings):
        return []
    answers = _possible_answers(seen.messages, output)
    results = [_results(answers[0], text) for text in UNKNOWN]
    users = [[Message("user", (text,))] for text in UNKNOWN]
    followed = results if output.tool_calls else users
    prompts = [[answer, *next_ones] for answer in answers for next_ones in followed]
    found = [_certain(engine, body, seen, prompts)]
    if settings.read_ahead == "turn" and output.tool_calls:
        ending = Message("assistant", ("a",))
        turns = [[answer, *some, ending, *users[0]] for answer in answers for some in results]
        found.append(_certain(engine, body, seen, turns))
    return [one for one in found if one is not None]


def _possible_answers(history: Sequence[Message], output: ChoiceOutput) -> list[Message]:
    """Return the answer as a message, with its reasoning and without it if the client may do either."""
    notes = Notes()
    calls = (Call(one.id, one.name, arguments_of(one.arguments, "", notes)) for one in output.tool_calls)
    texts = (output.text,) if output.text else ()
    answer = Message("assistant", texts, output.reasoning, tuple(calls))
    earlier = [one for one in history if one.role == "assistant"]
    if not output.reasoning or any(one.reasoning for one in earlier):
        return [answer]
    without = replace(answer, reasoning="")
    return [without] if earlier else [answer, without]


def _results(answer: Message, text: str) -> list[Message]:
    return [Message("tool", (text,), call_id=call.id) for call in answer.calls]


def _certain(
    engine: "GeneratingEngine", body: ChatRequest, seen: Seen, continuations: Sequence[Sequence[Message]]
) -> GenerationRequest | None:
    """Return a request for what all continuations' prompts have in common; None if there is none."""
    try:
        first, *others = [
            encode_chat(engine, body, replace(seen, messages=(*seen.messages, *one))) for one in continuations
        ]
    except BadRequestError:
        # The template refuses it, or it is too long.
        return None
    if first.num_dropped:
        return None
    length = min(count_common(first.tokens, other.tokens) for other in others)
    if not 1 < length < engine.info.context_tokens or any(image.end >= length for image in first.images):
        return None
    return GenerationRequest(
        "read ahead",
        first.tokens[:length],
        max_tokens=1,
        sampling=Sampling(seed=0),
        head_tokens=min(first.head_tokens, length),
        images=first.images,
    )
