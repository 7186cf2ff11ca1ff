"""The texts and tables that drafters share between requests: find, reset, restore and save them."""

import logging
from pathlib import Path

from reprise.config.settings import Settings
from reprise.drafters.base import KeptHistory, SharedTable, TableFileError
from reprise.engine.interface.errors import ModelError, SharedTableError
from reprise.engine.speculative.proposers import DraftSources, Proposers

log = logging.getLogger("reprise.engine")


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
    """Queue the work of learning an earlier run's finished requests, for the steps to come.

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
    if settings.prefix_cache_dir is not None and (history := _find_history(sources)) is not None:
        tables.append(history)
    for table in tables:
        try:
            log.info("%s", table.save())
        except TableFileError as fault:
            log.error("what drafters have learned could not be saved: %s", fault)


def _find_history(sources: DraftSources) -> KeptHistory | None:
    return next((one for one in sources.drafters.values() if isinstance(one, KeptHistory)), None)
