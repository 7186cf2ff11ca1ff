"""Make the engine's requests, one for each choice: sampling, seeds, limits, windowed decoding."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from reprise.config.settings import LOOP_GUARD_TOKENS, Settings
from reprise.engine.interface.images import PromptImage
from reprise.engine.interface.models import AnswerLimits, ModelInfo
from reprise.engine.interface.request import GenerationRequest, Grammar, Sampling, View, WindowSettings
from reprise.engine.interface.stations import station
from reprise.server.errors import BadRequestError, bad_field
from reprise.server.prompt.encoder import check_ids, check_length
from reprise.server.requests.generation_fields import GenerationFields, WindowFields

_UINT64 = 2**64


def request_seed(given: int | None) -> int:
    """Return the seed that a request gives, or one drawn from [0, 2**63) if it gives none."""
    return secrets.randbits(63) if given is None else given


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


def choose_window(body: WindowFields, info: ModelInfo, settings: Settings) -> WindowSettings | None:
    """Return the window settings of a request, or None if it is not decoded in windows.

    Raises BadRequestError, naming the field, if the model or the settings do not allow one of its values.
    """
    given = [name for name in WindowFields.model_fields if getattr(body, name) is not None]
    decoding = body.wedlm_decoding or settings.wedlm_decoding
    if given and info.mask_token_id is None:
        phrase = f"is for WeDLM models, and this server's model is a {info.architecture}; leave it out"
        raise bad_field(given[0], phrase, "unsupported_parameter")
    if decoding == "off":
        if others := [name for name in given if name != "wedlm_decoding"]:
            raise bad_field(others[0], "is allowed only with wedlm_decoding: streaming")
        return None
    if not info.can_decode_windows or info.mask_token_id is None:
        raise bad_field("wedlm_decoding", "is 'streaming', which this model's caches do not support")
    if settings.exact:
        raise bad_field("wedlm_decoding", "is 'streaming', but this server's answers are exact (--exact)")
    size, most = body.wedlm_window_size or settings.wedlm_window_size, settings.wedlm_window_size
    if size > most:
        raise bad_field("wedlm_window_size", f"is {size}; at most {most} is allowed (--wedlm-window-size)")
    threshold, factor = body.wedlm_entropy_threshold, body.wedlm_pos_penalty_factor
    if threshold is None:
        threshold = "none" if settings.wedlm_entropy_threshold is None else settings.wedlm_entropy_threshold
    return WindowSettings(
        info.mask_token_id,
        size,
        None if threshold == "none" else threshold,
        settings.wedlm_pos_penalty_factor if factor is None else factor,
        settings.wedlm_anchor if body.wedlm_anchor is None else body.wedlm_anchor,
    )


GREEDY_BELOW = 1e-5
"""Lower temperatures are sampled as 0: dividing logits by them would overflow."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of a request, and the inputs that all of its choices share.

    token_ids: (num_prompts,) the tokens of each prompt. images: those of the only prompt.
    The others: see GenerationRequest.
    """

    token_ids: Sequence[tuple[int, ...]]
    grammar: Grammar | None = None
    prediction: tuple[int, ...] = ()
    head_tokens: int = 0
    views: Sequence[View] = ()
    images: tuple[PromptImage, ...] = ()


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

    Raises BadRequestError if the model or the settings do not allow a token id, the prompt's length, n, or
    the fields of windowed decoding.
    """
    if body.n > settings.max_n:
        raise bad_field("n", f"is {body.n}; at most {settings.max_n} choices are allowed (--max-n)")
    num_sequences = len(prompts.token_ids) * body.n
    if num_sequences > settings.capacity:
        raise BadRequestError(
            f"{len(prompts.token_ids)} prompts with {body.n} choices each are {num_sequences} sequences; "
            f"this server holds at most {settings.capacity} (--max-rows and --max-queue).",
            param=body.prompt_field,
            code="invalid_value",
        )
    if prompts.images and body.truncate_prompt_tokens is not None:
        phrase = "could cut an image in two; send 'truncation': 'auto' with images"
        raise bad_field("truncate_prompt_tokens", phrase)
    check_ids(body, info)
    window_settings = choose_window(body, info, settings)
    seed = request_seed(body.seed)
    defaults = settings.sampling_defaults == "model"
    limits = info.answer_limits if defaults else AnswerLimits()
    guard = _loop_guard(body, settings, limits)
    most = body.requested_max_tokens or settings.default_max_tokens or limits.max_tokens
    samplings = [_sampling(body, choice_seed(seed, choice), info, defaults) for choice in range(body.n)]
    requests: list[GenerationRequest] = []
    for whole in prompts.token_ids:
        prompt = _truncated(whole, body, info)
        room = check_length(prompt, body.prompt_field, info)
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
