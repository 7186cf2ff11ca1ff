"""From a loaded model to a worker: what can be drafted for it, and what its steps cost."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from config.settings import Settings
from engine.kv_cache.per_row import is_recurrent, leaves, make_caches
from engine.kv_cache.probes import can_batch, kv_bits_fault, rollback_fault
from engine.model.loading import LoadedModel, ModelError, Progress, StartProgress
from engine.model.vocabulary import VocabularyError
from engine.scheduler.memory_budget import make_memory_budget
from engine.scheduler.speculation import Planner
from engine.speculative.calibration import load_costs
from engine.speculative.draft_model.costs import DraftModelCosts
from engine.speculative.draft_model.model import DraftModel
from engine.speculative.exact_widths import find_exact_shapes
from engine.speculative.proposers import DraftSources, Proposers
from engine.speculative.step_costs import StepCosts
from engine.speculative.translation.translation import Translation
from engine.worker import Worker

log = logging.getLogger("reprise.engine")

MakeSources = Callable[[str], DraftSources]
"""Makes the drafters for a vocabulary, which its fingerprint names."""


def flat_costs() -> StepCosts:
    """Every step costs the same: whatever is drafted is worth it."""
    return StepCosts({(1, 1): 1.0})


FREE = StepCosts({(1, 1): 1e-9})


def make_worker(
    loaded: LoadedModel,
    settings: Settings,
    make_sources: MakeSources | None,
    draft: LoadedModel | None,
    costs: StepCosts | None,
    progress: StartProgress,
) -> Worker:
    """Find out what the model allows, measure what is not known, and set up a worker.

    Raises ModelError where settings and model do not go together.

    make_sources: None for no drafting at all. draft: a model to draft with, if any.
    costs: what steps cost, if that need not be measured; the draft model's then cost nothing.
    progress: takes what is measured or tried, and the share of it that is done.
    """
    if settings.kv_bits and (fault := kv_bits_fault(loaded.model, settings.kv_bits)):
        raise ModelError(f"--kv-bits {settings.kv_bits}: {fault}")
    batched = can_batch(loaded.model, settings.kv_bits)
    if make_sources and (fault := rollback_fault(loaded.model, settings.kv_bits)):
        log.warning("decoding plainly, without drafts: %s", fault)
        make_sources = None
    model = _make_draft_model(draft, loaded, settings) if draft and make_sources else None
    memory_budget = make_memory_budget(loaded, settings, batched, model)
    if make_sources is None:
        planner = Planner(flat_costs(), batched)
        return Worker(loaded, settings, batched, memory_budget, Proposers(None, settings), planner)
    sources = make_sources(loaded.tokenizer.fingerprint)
    model_costs, is_measured = FREE, costs is None
    if costs is None:
        measuring = partial(progress, "Measuring what steps cost")
        costs = load_costs(loaded, settings, batched, settings.num_draft_tokens + 1, measuring)
        if model:
            measuring = partial(progress, "Measuring what the draft model's steps cost")
            # Its own caches are never quantised.
            plainly = replace(settings, kv_bits=None)
            model_costs = load_costs(model.loaded, plainly, model.batched, 1, measuring)
    trying = partial(progress, "Trying which widths are exact")
    exact = _exact_shapes(loaded, settings, batched, costs, trying) if settings.exact else None
    drafting_costs = DraftModelCosts(model_costs, costs, model.batched, is_measured) if model else None
    planner = Planner(costs, batched, exact, drafting_costs, _is_recurrent(loaded))
    drafting = Proposers(sources, settings, bool(model), loaded.tokenizer.line_ends)
    return Worker(loaded, settings, batched, memory_budget, drafting, planner, model)


def _make_draft_model(draft: LoadedModel, target: LoadedModel, settings: Settings) -> DraftModel:
    """Set up translation between the two, and say what is worth knowing of it. Raises ModelError."""
    names = f"{draft.info.name} cannot draft for {target.info.name}"
    try:
        translation = Translation.between(
            draft.tokenizer, target.tokenizer, settings.draft_translation, settings.translation_prefix_tokens
        )
    except VocabularyError as fault:
        raise ModelError(f"{names}: {fault}; take one of the same family, or none") from fault
    if pair := translation.pair:
        log.info(
            "drafts are translated (%s): %d of the draft model's %d tokens are the model's own too",
            translation.strategy, pair.token_map.num_shared, pair.draft.size,
        )  # fmt: skip
        for loaded, vocabulary in ((draft, pair.draft), (target, pair.target)):
            if not vocabulary.is_exact:
                told = "the tokenizer of %s does not give every text back as it was: some drafts will be lost"
                log.warning(told, loaded.info.name)
    elif settings.draft_translation == "none" and draft.tokenizer.fingerprint != target.tokenizer.fingerprint:
        told = (
            "--draft-translation none: the draft model has another vocabulary; its ids are taken as they are"
        )
        log.warning(told)
    if draft.info.context_tokens < target.info.context_tokens:
        told = "the draft model reads %d tokens: longer texts get no drafts of it"
        log.info(told, draft.info.context_tokens)
    target.info = replace(target.info, draft_strategy=translation.strategy)
    return DraftModel(draft, translation)


def _is_recurrent(loaded: LoadedModel) -> bool:
    return any(is_recurrent(cache) for cache in leaves(make_caches(loaded.model)))


def _exact_shapes(
    loaded: LoadedModel, settings: Settings, batched: bool, costs: StepCosts, progress: Progress
) -> frozenset[tuple[int, int]]:
    if _is_recurrent(loaded):
        # What is kept of a draft is fed again at widths that nobody can foresee.
        log.info("exact: the model keeps recurrent state, so nothing is drafted")
        return frozenset()
    max_rows = settings.max_rows if batched else 1
    shapes = [(rows, width) for rows in range(1, max_rows + 1) for width in costs.widths if width > 1]
    found = find_exact_shapes(
        loaded.model, batched, settings.kv_bits, loaded.info.vocab_size, shapes, progress
    )
    alone = [str(width) for rows, width in sorted(found) if rows == 1]
    log.info(
        "exact: %d of %d shapes equal width 1 byte for byte; for one row the widths %s",
        len(found), len(shapes), ", ".join(alone) or "none, so nothing is drafted",
    )  # fmt: skip
    return found
