"""Create the lookup drafters that the settings describe."""

from pathlib import Path

from reprise.config.settings import Settings
from reprise.drafters.base import Drafter
from reprise.drafters.copies.history import HistoryFile
from reprise.drafters.ngram_mod.drafter import NgramModDrafter
from reprise.drafters.ngram_mod.table import NgramModTables
from reprise.drafters.prediction import PredictionDrafter
from reprise.drafters.suffix import SuffixDrafter


def make_drafters(settings: Settings, vocabulary: str) -> dict[str, Drafter]:
    """Return the drafters of one vocabulary, by name.

    vocabulary: its fingerprint. Token ids learned in one vocabulary are never drafted in another.
    """
    s = settings
    file = None if s.ngram_table_file is None else Path(s.ngram_table_file)
    tables = NgramModTables(vocabulary, s.ngram_mod_size, s.ngram_table_entries, s.ngram_scope, file)
    drafters: list[Drafter] = [
        PredictionDrafter(),
        SuffixDrafter(file=_history_file(s, vocabulary)),
        NgramModDrafter(tables),
        SuffixDrafter(0, name="ngram-simple"),
    ]
    return {drafter.name: drafter for drafter in drafters}


def _history_file(settings: Settings, vocabulary: str) -> HistoryFile | None:
    """Return the file of finished requests, next to the prefix files; None if those are in memory only."""
    if (folder := settings.prefix_folder) is None:
        return None
    return HistoryFile(folder / f"history-{vocabulary[:16]}", vocabulary, settings.ngram_scope)
