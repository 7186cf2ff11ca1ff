"""Find the model that the settings name, and refuse a --models-dir that is no folder of models."""

from dataclasses import replace
from pathlib import Path

from reprise.cli.arguments import UsageError
from reprise.config.settings import Settings

CONFIG = "config.json"
"""The file that a model's folder has."""


def with_found(settings: Settings) -> Settings:
    """Return the settings with a path in place of a model's name, if --models-dir has a folder of that name.

    Reads names of files only. Raises UsageError if --models-dir is no folder of models.
    """
    if settings.models_dir is None:
        return settings
    folder = Path(settings.models_dir)
    if not folder.is_dir():
        raise UsageError(f"--models-dir {folder}: there is no such folder")
    if (folder / CONFIG).is_file():
        raise UsageError(f"--models-dir {folder} is a model itself: serve it with --model {folder}")
    held = [*folder.glob(f"*/{CONFIG}"), *folder.glob(f"*/*/{CONFIG}")]
    if not held and (files := sorted(folder.glob("**/*.gguf"))):
        raise UsageError(f"--models-dir {folder} holds GGUF files: serve one of them with --model {files[0]}")
    model = settings.model
    if model is None or Path(model).exists() or not (folder / model / CONFIG).is_file():
        return settings
    return replace(settings, model=str(folder / model))
