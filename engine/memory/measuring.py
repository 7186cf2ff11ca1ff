"""Measure the memory that the models need, and make their memory budget."""

import logging
from dataclasses import asdict, replace

import mlx.core as mx

from reprise.config.settings import Settings
from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.models import MemoryLimit
from reprise.engine.kv_cache.columns import GROWTH_TOKENS
from reprise.engine.kv_cache.recurrent import MAX_LATER_STATES
from reprise.engine.kv_cache.rows import Sharing
from reprise.engine.memory.budget import MemoryBudget
from reprise.engine.memory.estimate import STEADY_TOKENS, Estimator, ModelMemory
from reprise.engine.memory.footprint import Footprint, estimate, measure, usable_bytes, wire_weights
from reprise.engine.model.loading import LoadedModel
from reprise.engine.speculative.draft_model.draft_prefill import MAX_IDS_PER_TOKEN, MAX_UNSETTLED, SPARE_IDS
from reprise.engine.speculative.draft_model.model import MAX_BACKLOG_TOKENS, DraftModel
from reprise.engine.speculative.heads.head_drafter import HeadDrafter, RowDrafter

log = logging.getLogger("reprise.engine")

RESERVED_CHUNK_TOKENS = 256
"""Prompt tokens of a chunk for which memory is reserved. A step may feed more if there is memory left."""

HELD_COPIES = 3
"""Copies of what a layer of a head holds while it drafts: of the last token, of the next, and one in use."""


def make_memory_budget(
    loaded: LoadedModel,
    settings: Settings,
    sharing: Sharing,
    draft_model: RowDrafter | None,
    may_draft: bool = True,
) -> MemoryBudget:
    """Make the memory budget of measured models, and lower the target's context to what fits into memory.

    may_draft: whether there are verification steps with drafts.
    Raises ModelError if the weights and one row do not fit, or a row of the context that settings ask for, or
    if weights cannot be wired as settings ask.
    """
    given = settings.memory_bytes or usable_bytes()
    # MLX's own buffer cache counts too, and is freed first.
    mx.set_memory_limit(given)
    if settings.wire_weights:
        wire_weights()
    weight_bytes = loaded.info.weight_bytes
    if loaded.room_bytes is not None:
        given = min(given, weight_bytes + loaded.room_bytes)
    footprint = find_footprint(loaded, settings.kv_bits, bool(sharing))
    width = 1 + settings.num_draft_tokens * may_draft
    if loaded.info.can_decode_windows:
        # A step may settle the whole window, and the next one feeds that and a new window.
        width = max(width, 2 * settings.wedlm_window_size)
    models = [ModelMemory(footprint, sharing, width)]
    if isinstance(draft_model, HeadDrafter):
        weight_bytes += draft_model.num_bytes
        models = [_with_states(models[0], draft_model), _of_head(footprint, draft_model)]
    elif draft_model:
        weight_bytes += draft_model.loaded.info.weight_bytes
        is_translated = draft_model.translation.pair is not None
        draft_width = MAX_BACKLOG_TOKENS + (MAX_UNSETTLED if is_translated else 0)
        id_limits = (MAX_IDS_PER_TOKEN, SPARE_IDS) if is_translated else (1, 0)
        max_ids = draft_model.loaded.info.context_tokens
        models.append(
            ModelMemory(
                _drafting_footprint(draft_model),
                draft_model.sharing,
                draft_width,
                *id_limits,
                max_ids,
            )
        )
    whole_tokens = 0
    if loaded.sight and loaded.info.vision and loaded.sight.tower.sees_whole_image:
        whole_tokens = loaded.info.vision.max_tokens
    chunk_tokens = max(whole_tokens, min(RESERVED_CHUNK_TOKENS, settings.prefill_chunk_tokens))
    memory_budget = MemoryBudget(
        weight_bytes,
        given - weight_bytes,
        Estimator(
            models,
            loaded.info.vocab_size,
            chunk_tokens=chunk_tokens,
            ahead_tokens=width + STEADY_TOKENS,
            whole_tokens=whole_tokens,
        ),
        largest_chunk_tokens=max(chunk_tokens, settings.prefill_chunk_tokens),
    )
    if loaded.sight and loaded.info.vision:
        memory_budget.see(loaded.sight, loaded.info.vision)
    _limit_context(loaded, settings, memory_budget, given, weight_bytes)
    return memory_budget


def find_footprint(loaded: LoadedModel, kv_bits: int | None, batched: bool) -> Footprint:
    """Return the memory that a model needs besides its weights; measured unless it is known."""
    return loaded.findings.find(
        f"footprint, {kv_bits} bits, {'' if batched else 'not '}batched",
        lambda: measure(loaded.model, kv_bits, batched, loaded.findings.note_pass),
        lambda _: True,
        asdict,
        Footprint.of,
        meanwhile=lambda: estimate(loaded.model, kv_bits, loaded.info.vocab_size),
    )


def _with_states(target: ModelMemory, head: HeadDrafter) -> ModelMemory:
    """Add the states that prompts and rows keep for a head, and a forward pass's: apart, and joined."""
    footprint, state_bytes = target.footprint, head.state_bytes
    kept = replace(
        footprint,
        token_bytes=footprint.token_bytes + state_bytes,
        fed_bytes=footprint.fed_bytes + 2 * state_bytes,
        logits_bytes=footprint.logits_bytes + 2 * state_bytes,
    )
    return replace(target, footprint=kept)


def _of_head(target: Footprint, head: HeadDrafter) -> ModelMemory:
    """Return the memory that a head needs. Its forward pass takes no more than one of the whole target."""
    token_bytes, windows, layer_bytes = head.measure_caches()
    # A draft puts its own keys and values behind all that a layer holds, in a copy for each token.
    copied = HELD_COPIES * layer_bytes / MAX_BACKLOG_TOKENS
    footprint = Footprint(
        0,
        token_bytes,
        tuple((each, window) for window, each in windows.items()),
        layer_bytes,
        target.fed_bytes + 2 * head.state_bytes,
        target.seen_bytes + copied,
        target.logits_bytes,
    )
    return ModelMemory(footprint, Sharing.BUFFERS, MAX_BACKLOG_TOKENS)


def _drafting_footprint(draft_model: DraftModel) -> Footprint:
    """Measure what a draft model needs, with the states that it keeps after drafted tokens."""
    footprint = find_footprint(draft_model.loaded, None, bool(draft_model.sharing))
    state_bytes = footprint.fixed_bytes // 2 if draft_model.sharing else 0
    return replace(footprint, trace_bytes=footprint.trace_bytes + MAX_LATER_STATES * state_bytes)


def _limit_context(
    loaded: LoadedModel, settings: Settings, memory_budget: MemoryBudget, given: int, weight_bytes: int
) -> None:
    info = loaded.info
    max_tokens = memory_budget.max_tokens(info.context_tokens)
    have = f"{_in_mib(given)} of memory (--memory-bytes), {_in_mib(weight_bytes)} of it for weights,"
    if max_tokens < 2:
        raise ModelError(
            f"{have} leave no room for a row of {info.name}: even a short one takes "
            f"{_in_mib(memory_budget.bytes_alone(2))}"
        )
    if max_tokens == info.context_tokens:
        return
    if settings.max_context_tokens:
        raise ModelError(
            f"--max-context-tokens {info.context_tokens} takes "
            f"{_in_mib(memory_budget.bytes_alone(info.context_tokens))}; "
            f"{have} hold {max_tokens} tokens: lower it"
        )
    log.warning(
        "%s hold a context of %d tokens; the model's own limit is %d, which take %s",
        have, max_tokens, info.context_tokens, _in_mib(memory_budget.bytes_alone(info.context_tokens)),
    )  # fmt: skip
    first = memory_budget.bytes_alone(max_tokens)
    second = memory_budget.bytes_alone(max_tokens + GROWTH_TOKENS)
    limit = MemoryLimit(memory_budget.room_bytes, max_tokens, first, (second - first) / GROWTH_TOKENS)
    loaded.info = replace(info, context_tokens=max_tokens, memory_limit=limit)


def _in_mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
