"""Leave out the oldest turns of a conversation that is too long for the context.

A turn is a user's message and all messages that follow, up to the user's next. The place of a cut depends
on the lengths of the oldest turns alone and moves only now and then as the conversation grows: most requests
of a session therefore begin with the same text, which is cached.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pydantic_core import to_json

Messages = Sequence[dict[str, Any]]
MAX_CHARACTERS_PER_TOKEN = 6
"""More is never encoded to see whether it fits: turns are left out until the average is at most this."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A conversation without some of its oldest turns.

    num_characters: length of the messages that are left, as JSON. num_dropped: messages that were left out.
    """

    messages: Messages
    num_characters: int
    num_dropped: int = 0


def cuts(messages: Messages, step: int) -> list[Cut]:
    """Return the whole conversation, and then shorter and shorter cuts of it without its oldest turns.

    Every cut has the system messages at the head and the newest turn. step: each cut leaves out at least so
    many characters more than the one before.
    """
    head, starts = _turns(messages)
    sizes = [len(to_json(message)) for message in messages]
    found = [Cut(messages, sum(sizes))]
    left_out = [0, *accumulate(sizes[head:])]
    reached = step
    for start in starts:
        num_left_out = left_out[start - head]
        if num_left_out >= reached or start == starts[-1]:
            rest = _without(messages, head, start)
            found.append(Cut(rest, found[0].num_characters - num_left_out, start - head))
            reached = num_left_out - num_left_out % step + step
    return found


def newest_turn(messages: Messages) -> Messages:
    """Return the system messages at a conversation's head and its newest turn, which are always there."""
    head, starts = _turns(messages)
    return _without(messages, head, starts[-1]) if starts else messages


def _turns(messages: Messages) -> tuple[int, list[int]]:
    """Return how many system messages a conversation begins with, and where its later turns start."""
    head = next((at for at, one in enumerate(messages) if one["role"] != "system"), len(messages))
    return head, [at for at in range(head + 1, len(messages)) if messages[at]["role"] == "user"]


def _without(messages: Messages, head: int, start: int) -> Messages:
    return [*messages[:head], *messages[start:]]


def fit(
    messages: Messages,
    context_tokens: int,
    reserved_tokens: int,
    encode: Callable[[Messages], tuple[int, ...]],
) -> tuple[tuple[int, ...], int]:
    """Encode a conversation, without its oldest turns if it does not fit into the context.

    reserved_tokens: room that is left for the answer if turns are left out. encode: returns the tokens of a
        conversation.
    Returns the tokens, and how many messages were left out. The tokens may still be too many, if the newest
        turn alone is too long.
    """
    every = cuts(messages, max(1, context_tokens // 2))
    longest = MAX_CHARACTERS_PER_TOKEN * context_tokens
    tried = [cut for cut in every if cut.num_characters <= longest] or every[-1:]
    encoded: dict[int, tuple[int, ...]] = {}

    def fits(at: int) -> bool:
        tokens = encoded[at] = encode(tried[at].messages)
        reserved = reserved_tokens if tried[at].num_dropped else 1
        return len(tokens) <= context_tokens - reserved

    # With fewer messages the prompt only gets shorter.
    at = min(bisect_left(range(len(tried)), True, key=fits), len(tried) - 1)
    return encoded[at], tried[at].num_dropped
