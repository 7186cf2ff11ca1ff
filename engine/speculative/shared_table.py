"""What drafters remember across requests: found, forgotten, restored at start, saved on exit."""

import logging
from pathlib import Path

from config.settings import Settings
from drafters.base import SharedTable, TableFileError
from engine.model.loading import ModelError
from engine.request import SharedTableError
from engine.speculative.proposers import DraftSources

log = logging.getLogger("reprise.engine")


def find_table(sources: DraftSources) -> SharedTable:
    """The n-gram table. Raises SharedTableError if there is none."""
    memory: object = sources.drafters.get("ngram-mod")
    if not isinstance(memory, SharedTable):
        raise SharedTableError("there is no n-gram table: nothing can be drafted for this model")
    return memory


def forget(sources: DraftSources) -> None:
    """Forget all that finished requests taught, the table's and any other."""
    for drafter in sources.drafters.values():
        if isinstance(drafter, SharedTable):
            drafter.reset()


def restore(sources: DraftSources, settings: Settings) -> None:
    """Read the table that an earlier run has left, if the settings name a file and it exists.

    Raises ModelError for a file that is no such table: it must not be written over on exit.
    """
    file = settings.ngram_table_file
    if file is not None and sources.drafters and Path(file).expanduser().exists():
        try:
            log.info("%s", find_table(sources).load())
        except TableFileError as fault:
            raise ModelError(f"{fault}; move that file away, or name another --ngram-table-file") from fault


def save(sources: DraftSources, settings: Settings) -> None:
    """Write the table to the file of the settings, if they name one; a failure is logged."""
    if settings.ngram_table_file is not None and sources.drafters:
        try:
            log.info("%s", find_table(sources).save())
        except TableFileError as fault:
            log.error("the n-gram table is lost: %s", fault)
