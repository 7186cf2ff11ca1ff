"""Make the engine of a model, for its settings and with the drafters that models share."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from reprise.config.settings import Settings
from reprise.engine.model.loading import Load, LoadedModel, Progress, make_loader
from reprise.engine.models.kept_sources import KeptSources, MakeSourcesFor
from reprise.engine.models.known import KnownModels
from reprise.engine.models.messages import Inbox
from reprise.engine.models.model_engine import ModelEngine
from reprise.engine.models.served import ServedModel
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.heads.head_drafter import NamedHead
from reprise.engine.speculative.proposers import MakeSources

FindHead = Callable[[LoadedModel], NamedHead | None]
"""Finds and loads the head of a model; None if it has none. Raises ModelError."""


class Ranked(Protocol):
    """The machines that share a model, seen from this one. abort: ends all requests; for any thread."""

    abort: Callable[[str], None]

    def load(self, progress: Progress | None) -> LoadedModel:
        """Load this machine's part, once the others have theirs. Raises ModelError."""

    def begin_serving(self) -> None:
        """Prepare for requests, which begin to arrive now."""

    def explain(self) -> str | None:
        """Return why a machine was lost, if that made a request fail; else None."""

    def count(self) -> dict[str, dict[str, float]]:
        """Return the metrics of each machine: metric's name -> rank -> value."""


@dataclass(frozen=True)
class Makers:
    """How the parts of a model's engine are made. Parts that are None are made as the settings say.

    load: loads the model, on the engine's thread.
    make_sources: makes the drafters; without it nothing is drafted.
    load_draft: loads the draft model.
    find_head: finds the head that drafts from the model's states.
    costs: the costs of steps; by default they are measured while the engine is idle, and kept on disk.
    waits_for_costs: whether to measure the costs before the first request.
    ranks: the machines that share the model, which load it instead of `load`.
    """

    load: Load | None = None
    make_sources: MakeSources | None = None
    load_draft: Load | None = None
    find_head: FindHead | None = None
    costs: StepCosts | None = None
    waits_for_costs: bool = False
    ranks: Ranked | None = None


MakeEngine = Callable[[Settings, Makers, Inbox], ModelEngine]
"""Makes the engine of a model that generates text."""

MakeEmbedder = Callable[[Settings, str, Inbox, Callable[[], int]], ModelEngine]
"""Makes the engine of a model that embeds or ranks; see EmbeddingEngine."""


class EngineMaker:
    """Makes the engines of models.

    make_sources: makes the models' drafters; None to draft nothing.
    make_engine: makes the engine of a model that generates text. make_embedder: of one that embeds or ranks.
    """

    def __init__(
        self,
        known: KnownModels,
        make_sources: MakeSourcesFor | None,
        make_engine: MakeEngine,
        make_embedder: MakeEmbedder,
    ) -> None:
        self._known, self._make_engine, self._make_embedder = known, make_engine, make_embedder
        self._sources = KeptSources(make_sources) if make_sources else None

    def make(self, model: ServedModel) -> ModelEngine:
        """Make the engine of a model; the engine loads the model later."""
        found, settings = model.found, self._known.settings_of(model.name)
        # The first may be downloaded at its first load.
        if model is not self._known.first or (model.num_loads and found.folder.path.is_dir()):
            settings = replace(settings, model=str(found.folder.path))
        inbox = Inbox(self._known.wake.set)
        if found.folder.purpose != "generate":
            settings = replace(settings, model=str(found.folder.path))
            return self._make_embedder(settings, model.name, inbox, self._count_running)
        if found.adapter:
            settings = replace(settings, adapter_path=str(found.adapter))
        make_sources = self._sources.maker(settings) if self._sources else None
        # Its table is kept here.
        settings = replace(settings, ngram_table_file=None)
        return self._make_engine(settings, Makers(make_loader(settings, model.name), make_sources), inbox)

    def save(self) -> None:
        """Save what the drafters of all models learned."""
        if self._sources:
            self._sources.save()

    def _count_running(self) -> int:
        """Return how many models that generate have requests that decode or prefill."""
        engines = [model.engine for model in self._known.list_all()]
        return sum(one.is_running for one in engines if one and not one.passes_on)
