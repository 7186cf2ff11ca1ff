"""Convert GGUF files and packaged models into folders before they are served."""

from dataclasses import replace
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
