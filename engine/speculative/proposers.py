"""The server's drafters: chosen for each sequence, with acceptance learned over all requests."""

import itertools
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from reprise.config.settings import Settings
from reprise.drafters.base import Drafter, KeptHistory, SharedTable, TableFileError
from reprise.engine.interface.errors import ModelError, SharedTableError
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.speculative.acceptance import GLOBAL_DECAY, MODEL, Acceptance, AcceptanceCounts
from reprise.engine.speculative.costs.slowdown_budget import SlowdownBudget
from reprise.engine.speculative.draft_length import DrafterWork
from reprise.engine.speculative.draft_model.forecast import DraftForecast, PromptGate, TokenYield
from reprise.engine.speculative.gate import SWITCHED_OFF, decide
from reprise.engine.speculative.mask_drafts import MASKS, MaskDrafts
from reprise.engine.speculative.sequence_drafts import SequenceDrafts
from reprise.engine.vision.keys import prompt_keys

if TYPE_CHECKING:
    # Not at run time: it loads transformers, and the command line imports this before it binds its port.
    from reprise.engine.sampling.grammar import Matcher

log = logging.getLogger("reprise.engine")


@dataclass(frozen=True)
class DraftSources:
    """The drafters by name, as the command line makes them, and the score by which the gate rates prompts.

    score: starts to compute a prompt's score; a generator of slices that returns the score.
    numbers: yields the drafters' number for the next sequence of any model that shares them.
    """

    drafters: Mapping[str, Drafter]
    score: Callable[[Sequence[int]], Generator[int, None, float]]
    numbers: Iterator[int] = field(default_factory=itertools.count)


MakeSources = Callable[[str], DraftSources]
"""Makes the drafters for a vocabulary, given its fingerprint."""


class Proposers:
    """The server's drafters, and the acceptance learned over all requests.

    model: the one of MODELS that drafts too: the draft model, or a head; None for none.
    max_drafted: the most tokens that the draft model or head can draft at once; None for no limit.
    is_fed: whether it must be fed the text first; not if it reads the target's caches.
    line_ends: tokens of the vocabulary that end a line.
    mask_token_id: the target's mask token, if the target drafts for itself.
    work: the work that the drafters put off.
    vocab_size: number of token ids. Larger ids are keys of images and are cut from drafts. None for no limit.
    """

    def __init__(
        self,
        sources: DraftSources | None,
        settings: Settings,
        model: str | None = None,
        line_ends: frozenset[int] = frozenset(),
        mask_token_id: int | None = None,
        max_drafted: int | None = None,
    ) -> None:
        self.can_draft = sources is not None
        self.sources = sources or DraftSources({}, _no_score)
        self.settings = settings
        self.model = model
        self.max_drafted = max_drafted
        self.is_fed = True
        self.line_ends = line_ends
        self.mask_token_id = mask_token_id
        self.global_counts = AcceptanceCounts(GLOBAL_DECAY)
        self.token_yield = TokenYield()
        self.prompt_gate = PromptGate()
        self.work = DrafterWork()
        self.vocab_size: int | None = None

    def begin(self, request: GenerationRequest, matcher: "Matcher | None" = None) -> SequenceDrafts:
        """Choose a new sequence's drafters and open them. A drafter that raises is left out.

        They index the prompt in later steps, after the score that the gate may need.
        """
        if request.images and self.vocab_size:
            # Drafters tell images apart, whose tokens are the same.
            keys = prompt_keys(request.prompt, request.images, self.vocab_size)
            request = replace(request, prompt=tuple(keys))
        has_masks = self.mask_token_id is not None
        asked = request if self.is_fed else replace(request, images=())
        decide_by_score = partial(decide, asked, self.settings, self.model, has_masks)
        gate = decide_by_score()
        acceptance = Acceptance(self.global_counts, gate.doubt, self.line_ends)
        limit, drafters = self.settings.num_draft_tokens, self.sources.drafters
        if request.draft.max_tokens is not None:
            limit = min(limit, request.draft.max_tokens)
        drafts = SequenceDrafts(
            next(self.sources.numbers),
            limit,
            gate,
            acceptance,
            self.new_forecast(acceptance),
            SlowdownBudget(self.settings.draft_overhead),
            [drafters[name] for name in (*gate.drafters, *gate.later) if name in drafters],
            self.work,
            uses_model=self.model in gate.drafters,
            vocab_size=self.vocab_size,
        )
        if asked.images and self.model:
            log.info("request %s: %s", request.id, gate.reason)
        if self.mask_token_id is not None and MASKS in gate.drafters:
            drafts.masks = MaskDrafts(self.mask_token_id, acceptance)
        if self.can_draft and gate is not SWITCHED_OFF:
            drafts.matcher = matcher
        drafts.open(request, self.sources.score, decide_by_score)
        return drafts

    def new_forecast(self, acceptance: Acceptance | None = None) -> DraftForecast:
        """Return a new request's forecast of the draft model."""
        acceptance = acceptance or Acceptance(self.global_counts)
        return DraftForecast(
            acceptance, TokenYield(self.token_yield), self.model or MODEL, self.max_drafted, self.is_fed
        )


def _no_score(_: Sequence[int]) -> Generator[int, None, float]:
    """Return the score's work for a prompt that cannot be drafted for."""
    yield from ()
    return 0.0


def find_table(sources: DraftSources) -> SharedTable:
    """Return the n-gram table. Raises SharedTableError if there is none."""
    table: object = sources.drafters.get("ngram-mod")
    if not isinstance(table, SharedTable):
        raise SharedTableError("there is no n-gram table, because nothing can be drafted for this model")
    return table


def reset(proposers: Proposers) -> None:
    """Let all drafters forget finished requests, those in the n-gram table included."""
    for drafter in proposers.sources.drafters.values():
        if isinstance(drafter, SharedTable) and (slices := drafter.reset()) is not None:
            proposers.work.close(next(proposers.sources.numbers), slices)


def restore(sources: DraftSources, settings: Settings) -> None:
    """Load the n-gram table that an earlier run saved, if the settings name a file and it exists.

    Raises ModelError if the file is no n-gram table, so that it is not overwritten on exit.
    """
    file = settings.ngram_table_file
    if file is not None and sources.drafters and Path(file).exists():
        try:
            log.info("%s", find_table(sources).load())
        except TableFileError as fault:
            raise ModelError(f"{fault}; move that file away, or name another --ngram-table-file") from fault


def restore_history(proposers: Proposers) -> None:
    """Queue the work of learning an earlier run's finished requests, for later steps.

    Requests that cannot be read are left out, as cached prefixes are.
    """
    if (history := _find_history(proposers.sources)) is None:
        return
    try:
        slices = history.restore()
    except TableFileError as fault:
        log.warning("%s; finished requests are learned anew", fault)
        return
    if slices is not None:
        proposers.work.close(next(proposers.sources.numbers), slices)


def save(sources: DraftSources, settings: Settings) -> None:
    """Save the n-gram table and the finished requests where the settings say. Logs a failure."""
    tables: list[SharedTable | KeptHistory] = []
    if settings.ngram_table_file is not None and sources.drafters:
        tables.append(find_table(sources))
    if settings.prefix_folder is not None and (history := _find_history(sources)) is not None:
        tables.append(history)
    for table in tables:
        try:
            log.info("%s", table.save())
        except TableFileError as fault:
            log.error("what drafters have learned could not be saved: %s", fault)


def _find_history(sources: DraftSources) -> KeptHistory | None:
    return next((one for one in sources.drafters.values() if isinstance(one, KeptHistory)), None)
