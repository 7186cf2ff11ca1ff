"""Turn what `reprise serve` takes as a model into a folder, for commands that need one."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from reprise.cli.arguments import failing
from reprise.cli.models.convert import progress_bar
from reprise.config.settings import Settings


def with_converted(settings: Settings) -> Settings:
    """Return the settings with converted folders in place of GGUF files and packaged models.

    Converts each model that was not converted before. Raises FailedError if a model cannot be converted.
    """
    # Imported here so that other commands do not load it.
    from reprise.engine.model.convert.sources import is_converted_first

    named = {"model": settings.model, "draft_model": settings.draft_model}
    sources = {name: source for name, source in named.items() if source and is_converted_first(source)}
    if not sources:
        return settings
    from reprise.engine.model.convert.kept import converted
    from reprise.engine.model.convert.options import ConvertError

    with failing(ConvertError):
        folders: dict[str, Any] = {
            name: str(converted(source, progress_bar)) for name, source in sources.items()
        }
    return replace(settings, **folders)


def take_folders(arguments: argparse.Namespace) -> None:
    """Put folders in place of the models that a benchmark's arguments name in any way that serve takes.

    Raises FailedError if a model cannot be found, downloaded or converted.
    """
    for name in {"model", "draft_model", "tokenizer"} & vars(arguments).keys():
        given = getattr(arguments, name)
        if isinstance(given, list):
            setattr(arguments, name, [_find(one) for one in given])
        elif given is not None:
            setattr(arguments, name, type(given)(_find(given)))


def _find(model: str | Path) -> Path:
    """Return the folder of a model, which is converted or downloaded if need be."""
    converted = with_converted(Settings(model=str(model))).model or str(model)
    if (Path(converted) / "config.json").is_file():
        return Path(converted)
    from reprise.engine.interface.errors import ModelError
    from reprise.engine.model.loading import find_folder

    with failing(ModelError), progress_bar(f"looking for {converted}") as report:
        return find_folder(converted, lambda share: report(int(100 * share), 100))
