"""Make the engine's requests from a validated request body and its token ids, one for each choice."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

from config.settings import LOOP_GUARD_TOKENS, Settings
from engine.interface.images import PromptImage
from engine.interface.models import AnswerLimits, ModelInfo
from engine.interface.request import DraftType, GenerationRequest, Grammar, Sampling, View
from engine.interface.stations import station
from server.errors import BadRequestError, ContextLengthError
from server.generation.windowed_decoding import choose_window
from server.requests.generation_fields import GenerationFields

GREEDY_BELOW = 1e-5
"""Lower temperatures are sampled as 0: dividing logits by them would overflow."""
_UINT64 = 2**64


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of a request, and what is the same for all of its choices.

    token_ids: of each prompt. The others: see GenerationRequest; images are of the one prompt.
    make_views: has those made that are not there yet; called when the first token has come.
    """

    token_ids: Sequence[tuple[int, ...]]
    grammar: Grammar | None = None
    prediction: tuple[int, ...] = ()
    head_tokens: int = 0
    views: Sequence[View] = ()
    images: tuple[PromptImage, ...] = ()
    make_views: Callable[[], None] | None = None


@station("submission")
def make_engine_requests(
    request_id: str,
    body: GenerationFields,
    prompts: Prompts,
    info: ModelInfo,
    settings: Settings,
    tenant: str = "",
) -> list[GenerationRequest]:
    """Make one engine request for each choice: all choices of the first prompt first, as OpenAI does.

    Raises BadRequestError if the model or the settings forbid a token id, the length, n or how to decode.
    """
    if body.n > settings.max_n:
        raise BadRequestError(
            f"'n' is {body.n}; at most {settings.max_n} choices are allowed (--max-n).",
            param="n",
            code="invalid_value",
        )
    num_sequences = len(prompts.token_ids) * body.n
    capacity = settings.max_rows + settings.max_queue
    if num_sequences > capacity:
        raise BadRequestError(
            f"{len(prompts.token_ids)} prompts with {body.n} choices each are {num_sequences} sequences; "
            f"this server holds at most {capacity} (--max-rows and --max-queue).",
            param=body.prompt_field,
            code="invalid_value",
        )
    if prompts.images and body.truncate_prompt_tokens is not None:
        raise BadRequestError(
            "'truncate_prompt_tokens' could cut an image in two; send 'truncation': 'auto' with images.",
            param="truncate_prompt_tokens",
            code="invalid_value",
        )
    check_ids(body, info)
    window_settings = choose_window(body, info, settings)
    seed = secrets.randbits(63) if body.seed is None else body.seed
    defaults = settings.sampling_defaults == "model"
    limits = info.answer_limits if defaults else AnswerLimits()
    guard = _loop_guard(body, settings, limits)
    most = body.requested_max_tokens or settings.default_max_tokens or limits.max_tokens
    samplings = [_sampling(body, choice_seed(seed, choice), info, defaults) for choice in range(body.n)]
    requests: list[GenerationRequest] = []
    for whole in prompts.token_ids:
        prompt = _truncated(whole, body, info)
        room = _check_length(prompt, body.prompt_field, info)
        # The engine generates at least one token, which is not returned if only the prompt is scored.
        wanted = 1 if body.is_scoring else most or room
        for sampling in samplings:
            requests.append(
                GenerationRequest(
                    id=f"{request_id}-{len(requests)}",
                    prompt=prompt,
                    max_tokens=min(wanted, room),
                    sampling=sampling,
                    stop=body.stop,
                    draft=body.draft.choice,
                    prediction=prompts.prediction,
                    views=prompts.views,
                    tenant=tenant,
                    grammar=prompts.grammar,
                    top_logprobs=body.num_top_logprobs,
                    prompt_logprobs=body.wants_prompt_logprobs,
                    stop_tokens=body.stop_token_ids,
                    reports_progress=body.stream and body.return_progress,
                    reports_usage=body.stream and body.timings_per_token,
                    reports_origins=body.draft.trace,
                    window_settings=window_settings,
                    loop_guard_tokens=guard,
                    head_tokens=max(0, prompts.head_tokens - len(whole) + len(prompt)),
                    images=prompts.images,
                )
            )
    return requests


def _loop_guard(body: GenerationFields, settings: Settings, limits: AnswerLimits) -> int:
    """Return how many tokens of a loop end an answer; 0 for none."""
    if body.loop_guard_tokens is not None:
        return body.loop_guard_tokens
    # A client that sets a limit is obeyed.
    if body.requested_max_tokens is not None:
        return 0
    if settings.loop_guard_tokens is not None:
        return settings.loop_guard_tokens
    return LOOP_GUARD_TOKENS if limits.loop_guard_tokens is None else limits.loop_guard_tokens


def _truncated(prompt: tuple[int, ...], body: GenerationFields, info: ModelInfo) -> tuple[int, ...]:
    """Return the last tokens of a prompt, as many as the request wants to keep."""
    limit = body.truncate_prompt_tokens
    if limit is None:
        return prompt
    if limit < 0:
        limit = max(1, info.context_tokens - (body.requested_max_tokens or 1))
    return prompt[-limit:]


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of one of n choices, in [0, 2**64).

    The first choice has the request's seed; the others have hashes of it.

    Source: the finalizer of SplitMix64 (Steele et al. 2014).
    """
    if choice == 0:
        return seed % _UINT64
    mixed = (seed + choice * 0x9E3779B97F4A7C15) % _UINT64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % _UINT64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % _UINT64
    return mixed ^ (mixed >> 31)


def check_token_ids(prompt: Sequence[int], param: str, info: ModelInfo) -> None:
    """Raise BadRequestError for token ids that the model does not have.

    param: path of the prompt in the body.
    """
    if min(prompt) < 0 or max(prompt) >= info.vocab_size:
        index = next(i for i, token in enumerate(prompt) if not 0 <= token < info.vocab_size)
        raise _unknown_id(f"{param}[{index}]", prompt[index], info)


def check_encoded(tokens: Sequence[int], param: str, info: ModelInfo) -> None:
    """Raise BadRequestError if the tokenizer has tokens that the weights lack: MLX would read beyond them.

    tokens: of the text at that path of the body.
    """
    if tokens and (highest := max(tokens)) >= info.vocab_size:
        raise _unknown_id(param, highest, info)


def check_ids(body: GenerationFields, info: ModelInfo) -> None:
    """Raise BadRequestError for token ids in fields about sampling that the model does not have."""
    for name in ("stop_token_ids", "allowed_token_ids"):
        if given := getattr(body, name):
            check_token_ids(given, name, info)
    for token, _ in body.logit_bias:
        if token >= info.vocab_size:
            raise _unknown_id("logit_bias", token, info)


_OF_MODELS = ("draft-model", "mtp", "dflash", "wedlm")
"""Draft types that depend on the models served."""


def draft_fault(body: GenerationFields, settings: Settings, info: ModelInfo) -> BadRequestError | None:
    """Return the fault of the source of drafts that a request names; None if the server has that source."""
    kind, missing, remedy = body.draft.type, "", ""
    if kind == "draft-model" and (settings.draft_model is None or info.head):
        missing, remedy = "has no draft model", ", or start the server with --draft-model"
    if kind in ("mtp", "dflash") and info.head != kind:
        missing = "serves no model with an MTP head" if kind == "mtp" else "has no DFlash drafter"
        remedy = ", or start the server with --draft-model and the folder of one"
    if kind == "wedlm" and info.mask_token_id is None:
        missing = "serves no WeDLM model"
    if not missing:
        return None
    drafters = ", ".join(one for one in get_args(DraftType) if one not in _OF_MODELS)
    return BadRequestError(
        f"'draft.type' is '{kind}', but this server {missing}; use one of {drafters}{remedy}.",
        param="draft.type",
        code="no_draft_model",
    )


def _unknown_id(param: str, token: int, info: ModelInfo) -> BadRequestError:
    subject = f"token id {token} is" if abs(token) < 10**20 else "the token id is far too large,"
    return BadRequestError(
        f"'{param}': {subject} outside the vocabulary of {info.vocab_size} tokens; "
        f"ids go from 0 to {info.vocab_size - 1}.",
        param=param,
        code="invalid_token_id",
    )


def _check_length(prompt: tuple[int, ...], param: str, info: ModelInfo) -> int:
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


def _sampling(body: GenerationFields, seed: int, info: ModelInfo, uses_defaults: bool) -> Sampling:
    """Return the sampling of a choice. uses_defaults: what the body leaves out is as the model recommends."""
    defaults = info.sampling_defaults.known if uses_defaults else {}
    left_out = {name: value for name, value in defaults.items() if name not in body.model_fields_set}
    temperature = float(left_out.get("temperature", body.temperature))
    top_k = int(left_out.get("top_k", body.top_k))
    return Sampling(
        seed=seed,
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=left_out.get("top_p", body.top_p),
        top_k=top_k if 0 < top_k < info.vocab_size else 0,
        min_p=left_out.get("min_p", body.min_p),
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=left_out.get("repetition_penalty", body.repetition_penalty),
        logit_bias=body.logit_bias,
        allowed=body.allowed_token_ids,
        ignores_eos=body.ignore_eos,
        min_tokens=body.min_tokens,
    )
