"""Refuse token ids that the model does not have, and more tokens than its context takes."""

from collections.abc import Sequence

from reprise.engine.interface.models import ModelInfo
from reprise.server.errors import BadRequestError, ContextLengthError
from reprise.server.requests.generation_fields import GenerationFields


def check_token_ids(prompt: Sequence[int], param: str, info: ModelInfo) -> None:
    """Raise BadRequestError for token ids that the model does not have.

    param: path of the prompt in the body.
    """
    if min(prompt) < 0 or max(prompt) >= info.vocab_size:
        index = next(i for i, token in enumerate(prompt) if not 0 <= token < info.vocab_size)
        raise _unknown_id(f"{param}[{index}]", prompt[index], info)


def check_encoded(tokens: Sequence[int], param: str, info: ModelInfo) -> None:
    """Raise BadRequestError if a text has tokens that the weights lack: MLX would read beyond the weights.

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
    """Return the number of tokens of the context that are left for the output, at least one.

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
    """Make the error for a prompt, prediction or array of tokens that leaves no room in the context.

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
            f"The {noun} has {counted}, which would take {_mebibytes(limit.bytes_of(num_tokens))} of memory "
            f"to compute; this server has {_mebibytes(limit.room_bytes)} for it, that is "
            f"{info.context_tokens} tokens, prompt and output together. Shorten it, or start the server with "
            "a larger --memory-bytes."
        )
    if noun != "prompt":
        return BadRequestError(message, param=param, code="context_length_exceeded")
    return ContextLengthError(num_tokens, info.context_tokens, param, message)


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
