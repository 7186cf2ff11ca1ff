"""Rules for a prompt's length: what is refused, and which turns or tokens are dropped to fit."""

from bisect import bisect_left
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import to_json

from reprise.engine.interface.models import ModelInfo
from reprise.server.errors import BadRequestError, ContextLengthError
from reprise.server.requests.generation_fields import GenerationFields

if TYPE_CHECKING:
    from reprise.engine.generating.generating_engine import GeneratingEngine

MAX_TRUNCATED_CONTEXTS = 4
"""Maximum length of a prompt of which only the end is kept, in contexts: all of it has to be encoded."""


def check_token_ids(prompt: Sequence[int], param: str, info: ModelInfo) -> None:
    """Raise BadRequestError for token ids that the model does not have.

    param: path of the prompt in the body.
    """
    if min(prompt) < 0 or max(prompt) >= info.vocab_size:
        index = next(i for i, token in enumerate(prompt) if not 0 <= token < info.vocab_size)
        raise _unknown_id(f"{param}[{index}]", prompt[index], info)


def check_encoded(tokens: Sequence[int], param: str, info: ModelInfo) -> None:
    """Raise BadRequestError for tokens beyond the weights, where MLX would read out of bounds.

    tokens: the text's tokens. param: the text's path in the body.
    """
    if tokens and (highest := max(tokens)) >= info.vocab_size:
        raise _unknown_id(param, highest, info)


def check_ids(body: GenerationFields, info: ModelInfo) -> None:
    """Raise BadRequestError if a sampling field, such as logit_bias, has token ids that the model lacks."""
    for name in ("stop_token_ids", "allowed_token_ids"):
        if given := getattr(body, name):
            check_token_ids(given, name, info)
    for token, _ in body.logit_bias:
        if token >= info.vocab_size:
            raise _unknown_id("logit_bias", token, info)


def _unknown_id(param: str, token: int, info: ModelInfo) -> BadRequestError:
    subject = f"token id {token} is" if abs(token) < 10**20 else "the token id is far too large,"
    return BadRequestError(
        f"'{param}': {subject} outside the vocabulary of {info.vocab_size} tokens; "
        f"ids go from 0 to {info.vocab_size - 1}.",
        param=param,
        code="invalid_token_id",
    )


def check_length(prompt: tuple[int, ...], param: str, info: ModelInfo) -> int:
    """Return the number of context tokens left for the output, at least one.

    Raises BadRequestError if the prompt is empty, leaves no room, or has tokens that the weights lack.
    """
    if not prompt:
        raise BadRequestError(
            "The prompt is empty; send at least one token.", param=param, code="invalid_value"
        )
    room = info.context_tokens - len(prompt)
    if room < 1:
        raise context_error(len(prompt), param, info)
    check_encoded(prompt, param, info)
    return room


def context_error(
    num_tokens: int, param: str, info: ModelInfo, is_lower_bound: bool = False
) -> BadRequestError:
    """Make the error for a prompt, prediction or token array that exceeds the context.

    is_lower_bound: the tokens were not counted exactly; there are at least num_tokens.
    """
    noun = {"prediction": "prediction", "tokens": "array 'tokens'"}.get(param, "prompt")
    counted = f"{'at least ' if is_lower_bound else ''}{num_tokens} tokens"
    limit = info.memory_limit
    if limit is None:
        message = (
            f"The {noun} has {counted}; the limit is {info.context_tokens}, prompt and output together "
            "(the model's own limit, or --max-context-tokens). Shorten it."
        )
    else:
        message = (
            f"The {noun} has {counted}, which would take {limit.bytes_of(num_tokens) / 2**20:,.1f} MiB of "
            f"memory to compute; this server has {limit.room_bytes / 2**20:,.1f} MiB for it, that is "
            f"{info.context_tokens} tokens, prompt and output together. Shorten it, or start the server with "
            "a larger --memory-bytes."
        )
    if noun != "prompt":
        return BadRequestError(message, param=param, code="context_length_exceeded")
    return ContextLengthError(num_tokens, info.context_tokens, param, message)


def check_size(
    engine: "GeneratingEngine", num_characters: int, param: str, body: GenerationFields | None = None
) -> None:
    """Raise BadRequestError for text that certainly has too many tokens, before it is encoded.

    body: the request, if the text is its prompt, which may be truncated to its end.
    """
    is_truncated = body is not None and body.truncate_prompt_tokens is not None
    most_tokens = (MAX_TRUNCATED_CONTEXTS if is_truncated else 1) * engine.info.context_tokens
    min_tokens = num_characters // engine.tokenizer.longest_token
    if min_tokens >= most_tokens:
        raise context_error(min_tokens, param, engine.info, is_lower_bound=True)


Messages = Sequence[dict[str, Any]]
EncodedT = TypeVar("EncodedT", bound=Sized)
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
    """Yield the whole conversation, then ever shorter cuts without its oldest turns.

    Every cut has the leading system messages and the newest turn. step: each cut drops at least this many
    more characters than the one before.
    """
    head, starts = _turns(messages)
    sizes = [len(to_json(message)) for message in messages]
    whole = sum(sizes)
    left_out = [0, *accumulate(sizes[head:])]
    found, reached = [Cut(messages, whole)], step
    for start in starts:
        num_left_out = left_out[start - head]
        if num_left_out >= reached or start == starts[-1]:
            rest = [*messages[:head], *messages[start:]]
            found.append(Cut(rest, whole - num_left_out, start - head))
            reached = num_left_out - num_left_out % step + step
    return found


def newest_turn(messages: Messages) -> Messages:
    """Return a conversation's leading system messages and its newest turn, which are never dropped."""
    head, starts = _turns(messages)
    return [*messages[:head], *messages[starts[-1] :]] if starts else messages


def num_systems(messages: Messages) -> int:
    """Return how many system messages a conversation begins with."""
    return next((at for at, one in enumerate(messages) if one["role"] != "system"), len(messages))


def _turns(messages: Messages) -> tuple[int, list[int]]:
    """Return how many system messages a conversation begins with, and where its later turns start."""
    head = num_systems(messages)
    return head, [at for at in range(head + 1, len(messages)) if messages[at]["role"] == "user"]


def fit(
    messages: Messages,
    context_tokens: int,
    reserved_tokens: int,
    encode: Callable[[Messages], EncodedT],
) -> tuple[EncodedT, int]:
    """Encode a conversation, without its oldest turns if it does not fit into the context.

    reserved_tokens: room for the answer if turns are dropped. encode: returns the tokens.
    Returns encode's result, and how many messages were dropped. The result is still too long if the newest
        turn alone is.
    """
    every = cuts(messages, max(1, context_tokens // 2))
    longest = MAX_CHARACTERS_PER_TOKEN * context_tokens
    tried = [cut for cut in every if cut.num_characters <= longest] or every[-1:]
    encoded: dict[int, EncodedT] = {}

    def fits(at: int) -> bool:
        tokens = encoded[at] = encode(tried[at].messages)
        reserved = reserved_tokens if tried[at].num_dropped else 1
        return len(tokens) <= context_tokens - reserved

    # With fewer messages the prompt only gets shorter. The whole conversation needs less room for the answer.
    at = 0 if fits(0) else min(bisect_left(range(len(tried)), True, 1, key=fits), len(tried) - 1)
    return encoded[at], tried[at].num_dropped


def truncate(prompt: tuple[int, ...], body: GenerationFields, info: ModelInfo) -> tuple[int, ...]:
    """Return the last tokens of a prompt, as many as the request wants to keep."""
    limit = body.truncate_prompt_tokens
    if limit is None:
        return prompt
    if limit < 0:
        limit = max(1, info.context_tokens - (body.requested_max_tokens or 1))
    return prompt[-limit:]
