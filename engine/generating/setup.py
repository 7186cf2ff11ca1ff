"""Set up a worker for a loaded model: find out what the model allows."""

import logging
from dataclasses import replace
from functools import partial
from itertools import takewhile

from reprise.config.settings import GROUPS, SETTINGS, Settings
from reprise.engine.batch.batch import Batch, Device
from reprise.engine.generating.worker import Worker
from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.images import MAX_IMAGE_TOKENS
from reprise.engine.interface.models import Progress, StartProgress
from reprise.engine.kv_cache.exact_widths import Exactness, Tried, find_exact_shapes
from reprise.engine.kv_cache.per_row import is_recurrent, leaves, make_caches
from reprise.engine.kv_cache.probes import kv_bits_fault
from reprise.engine.kv_cache.rows import Sharing
from reprise.engine.memory.budget import MemoryBudget, find_footprint, make_memory_budget
from reprise.engine.model.capabilities import NOT_TRIED
from reprise.engine.model.loading import LoadedModel
from reprise.engine.pool.residency import FindHead, Makers
from reprise.engine.scheduler.draft_prefiller import DraftPrefiller
from reprise.engine.scheduler.prefixes import Checkpoints, Prefixes
from reprise.engine.scheduler.request_queue import Prefiller, RequestQueue
from reprise.engine.speculative.acceptance import MODEL
from reprise.engine.speculative.costs.kept_costs import make_costs
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.draft_model.draft_prefill import DraftPrefixes
from reprise.engine.speculative.draft_model.forecast import DraftModelCosts, ShareOfTarget
from reprise.engine.speculative.draft_model.model import DraftModel
from reprise.engine.speculative.heads.head_drafter import HeadDrafter, HeadPrefixes, RowDrafter
from reprise.engine.speculative.mask_drafts import MASKS
from reprise.engine.speculative.planner import Planner
from reprise.engine.speculative.proposers import Proposers
from reprise.engine.speculative.translation import Translation
from reprise.engine.text.vocabulary import VocabularyError

log = logging.getLogger("reprise.engine")


def flat_costs() -> StepCosts:
    """Return fixed costs by which all steps take equally long, so that every draft pays."""
    return StepCosts({(1, 1): 1.0}, is_learned=False)


PREFIX_CACHE_SHARE = 4
"""By default the prefix cache gets 1/PREFIX_CACHE_SHARE of the memory left after weights."""

TRIALS_AT_START_S = 10.0
"""Seconds of trials at the start; the rest run while the engine is idle."""

TRIALS = {"sharing": 100, "rollback": 27, "footprint": 68, "prefix": 10}
"""The tokens that each trial of a model feeds it, in order, by the beginning of its finding's name. Together
they take 35 forward passes."""


FREE = StepCosts({(1, 1): 1e-9})
"""Costs of the draft model's and the head's steps if the target's are given."""


def make_worker(
    loaded: LoadedModel,
    draft: LoadedModel | None,
    settings: Settings,
    makers: Makers,
    progress: StartProgress,
) -> Worker:
    """Set up a worker, with draft model, prefix cache and costs as the settings ask and the model allows.

    draft: the loaded draft model, if any.
    makers: make the drafters' sources, the head and the costs. With costs set, the draft model's steps
        count as free.
    progress: called with the name and the completed share of each slow stage.
    Raises ModelError if the settings do not suit the model.
    """
    make_sources = makers.make_sources
    _show_trials(progress, loaded, *([draft] if draft else []))
    if settings.kv_bits and (fault := kv_bits_fault(loaded.model, settings.kv_bits)):
        raise ModelError(f"--kv-bits {settings.kv_bits}: {fault}")
    if settings.draft_type == MASKS and loaded.info.mask_token_id is None:
        raise ModelError(f"--draft-type {MASKS} is for WeDLM models; {loaded.info.name} is none")
    sharing = loaded.find_sharing(settings.kv_bits)
    _prepare_windows(loaded, settings, sharing)
    if make_sources and (fault := loaded.rollback_fault(settings.kv_bits, sharing)):
        if fault != NOT_TRIED:
            log.warning("no drafts, only plain decoding: %s", fault)
        make_sources = None
    loaded.info = replace(loaded.info, batching=sharing.describe())
    if make_sources and loaded.info.weights_note and loaded.info.dtype.endswith("-bit"):
        log.warning("%s: %s", loaded.info.name, loaded.info.weights_note)
    _limit_sight(loaded, sharing)
    head = _make_head_drafter(loaded, makers.find_head) if make_sources else None
    translated = _make_draft_model(draft, loaded, settings) if draft and make_sources else None
    model = translated or head
    memory_budget = make_memory_budget(loaded, settings, sharing, model, make_sources is not None)
    device = Device()
    batch = Batch(loaded.model, loaded.info.vocab_size, sharing, model, device)
    if make_sources is None:
        planner, proposers = Planner(flat_costs()), Proposers(None, settings)
        return Worker(batch, _make_queue(loaded, settings, memory_budget, device), planner, proposers)
    sources = make_sources(loaded.tokenizer.fingerprint)
    costs, is_learned = makers.costs or make_costs(loaded.info, settings, bool(sharing)), makers.costs is None
    costs.batched = bool(sharing)
    trying = partial(progress, "Trying which widths are exact")
    exact = _find_exact(loaded, settings, sharing, costs, trying) if settings.exact else None
    if exact:
        loaded.info = replace(loaded.info, exact=exact.describe())
    drafting_costs = None
    if model:
        alone = ShareOfTarget(costs, model.cost_share(loaded)) if is_learned else FREE
        batched = bool(translated.sharing) if translated else True
        drafting_costs = DraftModelCosts(alone, costs, batched, is_learned)
    planner = Planner(costs, exact, drafting_costs)
    info = loaded.info
    proposers = Proposers(
        sources,
        settings,
        head.source if head else MODEL if translated else None,
        loaded.tokenizer.line_ends,
        info.mask_token_id,
        head.head.max_drafted if head else None,
    )
    proposers.vocab_size, proposers.is_fed = info.vocab_size, not (head and head.head.reads_target)
    queue = _make_queue(loaded, settings, memory_budget, device, head)
    drafting = _make_draft_prefiller(model, proposers, planner, queue, settings) if model else None
    return Worker(batch, queue, planner, proposers, drafting)


def may_put_trials_off(
    loaded: LoadedModel, draft: LoadedModel | None, settings: Settings, makers: Makers
) -> bool:
    """Whether long trials may wait until the engine is idle; until then each row decodes by itself.

    Not if more depends on them: a draft model, images, windows, exact widths, other machines, or given costs.
    """
    needs_them = draft or loaded.sight or loaded.info.mask_token_id is not None or settings.exact
    waits = makers.waits_for_trials or makers.costs is not None or makers.ranks
    return not (needs_them or waits)


def try_the_rest(loaded: LoadedModel, settings: Settings) -> None:
    """Run the trials that were put off. Raises PutOffError if they are interrupted again."""
    sharing = loaded.find_sharing(settings.kv_bits)
    loaded.rollback_fault(settings.kv_bits, sharing)
    find_footprint(loaded, settings.kv_bits, bool(sharing))
    loaded.prefix_fault(settings.kv_bits)


def _show_trials(progress: StartProgress, *models: LoadedModel) -> None:
    """Report the progress of the models' trials, before each trial and after each of its passes."""
    for one in models:
        shown = _ShownTrials(partial(progress, f"Trying what {one.info.name} can do"))
        one.findings.on_try, one.findings.on_pass = shown.begin, shown.add


class _ShownTrials:
    """Reports the share of a model's trials that is done, by tokens fed, to `progress`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._num_fed = self._end = 0

    def begin(self, name: str) -> None:
        """Note that the trial of a finding begins."""
        if name.startswith(tuple(TRIALS)):
            before = takewhile(lambda tried: not name.startswith(tried), TRIALS)
            self._num_fed = sum(TRIALS[tried] for tried in before)
            self._end = self._num_fed + next(num for tried, num in TRIALS.items() if name.startswith(tried))
            self.add(0)

    def add(self, num_tokens: int) -> None:
        """Count tokens fed in the present trial; other kinds of models may need more than expected."""
        self._num_fed = min(self._num_fed + num_tokens, self._end)
        self._progress(self._num_fed / sum(TRIALS.values()))


def _prepare_windows(loaded: LoadedModel, settings: Settings, sharing: Sharing) -> None:
    """Find out whether the model can decode in windows. Raises ModelError for settings it cannot use."""
    info = loaded.info
    if info.mask_token_id is None:
        for name in GROUPS["Windowed decoding"]:
            if getattr(settings, name) != SETTINGS[name].default:
                raise ModelError(
                    f"{SETTINGS[name].flag} is for WeDLM models; {info.name} is a {info.architecture}"
                )
        return
    fault = "its rows share no forward pass" if not sharing else None
    fault = fault or loaded.rollback_fault(settings.kv_bits, sharing)
    if fault and settings.wedlm_decoding == "streaming":
        raise ModelError(f"--wedlm-decoding streaming: {info.name} cannot do it: {fault}")
    if (size := settings.wedlm_window_size) >= info.context_tokens:
        raise ModelError(
            f"--wedlm-window-size {size}: the context has {info.context_tokens} tokens, prompt and answer "
            "together; choose a smaller window"
        )
    loaded.info = replace(info, can_decode_windows=fault is None)


def _limit_sight(loaded: LoadedModel, sharing: Sharing) -> None:
    """Limit the tokens of images; without rows that can place them, the model gets no images."""
    if vision := loaded.info.vision:
        most = max(vision.min_tokens, min(vision.max_tokens, MAX_IMAGE_TOKENS))
        loaded.info = replace(loaded.info, vision=replace(vision, max_tokens=most))
    # Their places have three axes, which only rows that share a forward pass keep.
    if loaded.sight and loaded.sight.has_axes and not sharing:
        log.warning("%s sees no images: its rows share no forward pass", loaded.info.name)
        loaded.sight, loaded.info = None, replace(loaded.info, vision=None)


def _make_queue(
    loaded: LoadedModel,
    settings: Settings,
    memory_budget: MemoryBudget,
    device: Device,
    head: HeadDrafter | None = None,
) -> RequestQueue:
    """Set up the request queue, with the prefix cache and prefill behind it. head: of the model, if any."""
    num_bytes = _prefix_bytes(settings, memory_budget)
    num_bytes -= memory_budget.draft_model_share(num_bytes)
    prefixes = Prefixes(loaded, settings, num_bytes, memory_budget)
    if prefixes.cache:
        memory_budget.prefixes.append(prefixes.cache)
    taps = head.taps if head and not head.head.reads_target else None
    checkpoints = Checkpoints(prefixes, loaded.tokenizer.openings)
    prefiller = Prefiller(loaded.model, prefixes, checkpoints, device, taps)
    prefiller.sight = loaded.sight
    return RequestQueue(settings, memory_budget, prefixes, prefiller)


def _make_draft_prefiller(
    model: RowDrafter, proposers: Proposers, planner: Planner, queue: RequestQueue, settings: Settings
) -> DraftPrefiller:
    """Set up draft prefill, of a draft model or a head, with a prefix cache of its own."""
    budget, of_target, opening = queue.memory_budget, queue.prefixes, queue.prefiller.checkpoints.opening
    num_bytes = budget.draft_model_share(_prefix_bytes(settings, budget))
    if isinstance(model, HeadDrafter):
        # Without the target's it would find nothing.
        num_bytes *= of_target.cache is not None
        may_copy = partial(budget.may_copy, model=-1, num_copies=2)
        prefixes: DraftPrefixes = HeadPrefixes(model, num_bytes, opening, of_target.store, may_copy)
    else:
        prefixes = DraftPrefixes(model.model, model.loaded.prefix_fault, num_bytes, opening)
    if prefixes.cache:
        # First: without its prefixes only drafts come later.
        budget.prefixes.insert(0, prefixes.cache)
    return DraftPrefiller(model, proposers, planner, budget, prefixes)


def _prefix_bytes(settings: Settings, memory_budget: MemoryBudget) -> int:
    if settings.prefix_cache_bytes is not None:
        return settings.prefix_cache_bytes
    return memory_budget.room_bytes // PREFIX_CACHE_SHARE


TRANSLATION_PREFIX_TOKENS = 5
"""Committed tokens that are encoded together with a draft: what is before them hardly changes its tokens."""


def _make_draft_model(draft: LoadedModel, target: LoadedModel, settings: Settings) -> DraftModel:
    names = f"{draft.info.name} cannot draft for {target.info.name}"
    try:
        translation = Translation.between(
            draft.tokenizer, target.tokenizer, settings.draft_translation, TRANSLATION_PREFIX_TOKENS
        )
    except VocabularyError as fault:
        raise ModelError(f"{names}: {fault}; use a draft model of the same family, or none") from fault
    if pair := translation.pair:
        log.info(
            "drafts are translated (%s): the target model has %d of the draft model's %d tokens",
            translation.strategy, pair.token_map.num_shared, pair.draft.size,
        )  # fmt: skip
        for loaded, vocabulary in ((draft, pair.draft), (target, pair.target)):
            if not vocabulary.is_exact:
                message = (
                    "the tokenizer of %s does not reproduce every text exactly; some drafts will be lost"
                )
                log.warning(message, loaded.info.name)
    elif settings.draft_translation == "none" and draft.tokenizer.fingerprint != target.tokenizer.fingerprint:
        log.warning(
            "--draft-translation none: the draft model has another vocabulary; its ids are used unchanged"
        )
    if draft.info.context_tokens < target.info.context_tokens:
        message = "the draft model's context is %d tokens; it drafts nothing for longer texts"
        log.info(message, draft.info.context_tokens)
    target.info = replace(target.info, draft_strategy=translation.strategy)
    return DraftModel(draft, translation)


def _make_head_drafter(loaded: LoadedModel, find_head: FindHead | None) -> HeadDrafter | None:
    named = find_head(loaded) if find_head else None
    if named is None:
        return None
    loaded.info = replace(loaded.info, head=named.source, head_described=named.described)
    return HeadDrafter(named, loaded)


def _find_exact(
    loaded: LoadedModel, settings: Settings, sharing: Sharing, costs: StepCosts, progress: Progress
) -> Exactness:
    if not sharing and any(is_recurrent(cache) for cache in leaves(make_caches(loaded.model))):
        # A rollback feeds the accepted tokens again, at a width that depends on what was rejected.
        log.info("exact: the model keeps recurrent state, so nothing is drafted")
        return Exactness()
    max_rows, widths = settings.max_rows if sharing else 1, [width for width in costs.widths if width > 1]
    shapes = [(rows, width) for rows in range(1, max_rows + 1) for width in widths]
    info = loaded.info
    tried = Tried(loaded.model, sharing, settings.kv_bits, info.vocab_size, info.context_tokens)
    try_them = partial(find_exact_shapes, tried, shapes, progress)
    # Thousands of forward passes: once is enough.
    under = f"{settings.kv_bits} bits, {sharing.name}, {info.context_tokens} tokens"
    name = f"exact, {under}, {max_rows} rows, widths {widths}"
    found = loaded.findings.find(name, try_them, lambda _: True, Exactness.encode, Exactness.of)
    log.info("exact: widths that equal width 1 byte for byte: %s", found.describe())
    return found
