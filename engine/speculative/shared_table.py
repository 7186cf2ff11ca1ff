"""The n-gram table that requests share: find it, reset it, restore it at start and save it on exit."""

import logging
from pathlib import Path

from config.settings import Settings
from drafters.base import SharedTable, TableFileError
from engine.model.loading import ModelError
from engine.request import SharedTableError
from engine.speculative.proposers import DraftSources

log = logging.getLogger("reprise.engine")


def find_table(sources: DraftSources) -> SharedTable:
    """Return the n-gram table. Raises SharedTableError if there is none."""
    table: object = sources.drafters.get("ngram-mod")
    if not isinstance(table, SharedTable):
        raise SharedTableError("there is no n-gram table, because nothing can be drafted for this model")
    return table


def reset(sources: DraftSources) -> None:
    """Drop everything that drafters learned from finished requests, in the table and elsewhere."""
    for drafter in sources.drafters.values():
        if isinstance(drafter, SharedTable):
            drafter.reset()


def restore(sources: DraftSources, settings: Settings) -> None:
    """Load the table that an earlier run saved, if the settings name a file and it exists.

    Raises ModelError if the file is not such a table, so that it is not overwritten on exit.
    """
    file = settings.ngram_table_file
    if file is not None and sources.drafters and Path(file).exists():
        try:
            log.info("%s", find_table(sources).load())
        except TableFileError as fault:
            raise ModelError(f"{fault}; move that file away, or name another --ngram-table-file") from fault


def save(sources: DraftSources, settings: Settings) -> None:
    """Save the table to the file that the settings name, if they do. Logs a failure."""
    if settings.ngram_table_file is not None and sources.drafters:
        try:
            log.info("%s", find_table(sources).save())
        except TableFileError as fault:
            log.error("the n-gram table could not be saved: %s", fault)
