"""Find the model that settings or arguments name, and convert it if need be.

An invalid --models-dir is refused.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from reprise.cli.convert import progress_bar
from reprise.config.setting import SettingsError
from reprise.config.settings import Settings
from reprise.engine.model.convert.sources import Show, is_converted_first

CONFIG = "config.json"
"""The file that a model's folder has."""


WHOLE_SHARE = 0.5
"""Maximum share of the memory for models and caches for weights dequantised to draft."""


def with_found(settings: Settings) -> Settings:
    """Return the settings with a model's name replaced by its path, if --models-dir has such a folder.

    Reads file names only. Raises SettingsError if --models-dir is not a folder of models.
    """
    if settings.models_dir is None:
        return settings
    folder = Path(settings.models_dir)
    if not folder.is_dir():
        raise SettingsError(f"--models-dir {folder}: there is no such folder")
    if (folder / CONFIG).is_file():
        raise SettingsError(f"--models-dir {folder} is a model itself: serve it with --model {folder}")
    held = [*folder.glob(f"*/{CONFIG}"), *folder.glob(f"*/*/{CONFIG}")]
    if not held and (files := sorted(folder.glob("**/*.gguf"))):
        raise SettingsError(
            f"--models-dir {folder} holds GGUF files: serve one of them with --model {files[0]}"
        )
    model = settings.model
    if model is None or Path(model).exists() or not (folder / model / CONFIG).is_file():
        return settings
    return replace(settings, model=str(folder / model))


def with_converted(settings: Settings, show: Show) -> Settings:
    """Return the settings with GGUF files and packaged models replaced by their converted folders.

    Converts each model that was not converted before. Raises ConvertError.
    """
    named = {"model": settings.model, "draft_model": settings.draft_model}
    sources = {name: source for name, source in named.items() if source and is_converted_first(source)}
    if not sources:
        return settings
    from reprise.engine.model.convert.conversion import converted
    from reprise.engine.model.device import usable_bytes

    whole_bytes = int(WHOLE_SHARE * usable_bytes())
    folders: dict[str, Any] = {
        name: str(converted(source, show, whole_bytes=whole_bytes)) for name, source in sources.items()
    }
    return replace(settings, **folders)


def take_folders(arguments: argparse.Namespace) -> None:
    """Replace the models in a benchmark's arguments, in any form that serve takes, by their folders.

    Raises ConvertError or ModelError if a model cannot be found, downloaded or converted.
    """
    for name in {"model", "draft_model", "tokenizer", "warm"} & vars(arguments).keys():
        given = getattr(arguments, name)
        if isinstance(given, list | tuple):
            vars(arguments)[name] = [_find(one) for one in given]
        elif given is not None:
            vars(arguments)[name] = type(given)(_find(given))


def _find(model: str | Path) -> Path:
    """Return a model's folder, converted or downloaded if need be."""
    converted = with_converted(Settings(model=str(model)), progress_bar).model or str(model)
    if (Path(converted) / CONFIG).is_file():
        return Path(converted)
    from reprise.engine.model.hub import find_folder

    with progress_bar(f"looking for {converted}") as report:
        return find_folder(converted, lambda share: report(int(100 * share), 100))
