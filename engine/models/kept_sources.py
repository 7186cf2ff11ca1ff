"""Keep what drafters learned, by vocabulary, while models come and go."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from reprise.config.settings import Settings
from reprise.engine.speculative import shared_table
from reprise.engine.speculative.proposers import DraftSources, MakeSources

MAX_KEPT = 4
"""Vocabularies whose drafters are kept without a model that uses them. Each has a table of n-grams."""

MakeSourcesFor = Callable[[Settings], MakeSources]
"""Returns what makes the drafters of a model with these settings."""


class KeptSources:
    """The drafters of all models; models of one vocabulary share them. Used by the engine's thread only.

    The n-gram table of the first vocabulary is in the settings' file, the others' are in files beside it.
    """

    def __init__(self, make_for: MakeSourcesFor) -> None:
        self._make_for = make_for
        self._kept: OrderedDict[str, tuple[DraftSources, Settings]] = OrderedDict()
        self._first: str | None = None

    def maker(self, settings: Settings) -> MakeSources:
        """Return a function from a vocabulary's fingerprint to its drafters, made by the settings if new."""
        return lambda vocabulary: self._find(settings, vocabulary)

    def save(self) -> None:
        """Save the n-gram tables and finished requests of all vocabularies to their files."""
        for sources, settings in self._kept.values():
            shared_table.save(sources, settings)

    def _find(self, settings: Settings, vocabulary: str) -> DraftSources:
        if vocabulary not in self._kept:
            self._first = self._first or vocabulary
            if settings.ngram_table_file is not None and vocabulary != self._first:
                settings = replace(
                    settings, ngram_table_file=f"{settings.ngram_table_file}.{vocabulary[:16]}"
                )
            sources = self._make_for(settings)(vocabulary)
            shared_table.restore(sources, settings)
            self._kept[vocabulary] = sources, settings
        self._kept.move_to_end(vocabulary)
        while len(self._kept) > MAX_KEPT:
            _, (dropped, its_settings) = self._kept.popitem(last=False)
            shared_table.save(dropped, its_settings)
        return self._kept[vocabulary][0]
