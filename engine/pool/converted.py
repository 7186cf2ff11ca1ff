"""Convert the models that must be, before they are loaded. Imports neither MLX nor a reader of GGUF."""

from dataclasses import replace
from typing import Any

from reprise.config.settings import Settings
from reprise.engine.model.convert.sources import Show, is_converted_first

WHOLE_SHARE = 0.5
"""Share of the memory for models and caches that weights may take that are dequantised for drafts."""


def with_converted(settings: Settings, show: Show) -> Settings:
    """Return the settings with converted folders in place of GGUF files and packaged models.

    Converts each model that was not converted before. Raises ConvertError.
    """
    named = {"model": settings.model, "draft_model": settings.draft_model}
    sources = {name: source for name, source in named.items() if source and is_converted_first(source)}
    if not sources:
        return settings
    from reprise.engine.memory.budget import usable_bytes
    from reprise.engine.model.convert.cache import converted

    whole_bytes = int(WHOLE_SHARE * usable_bytes())
    folders: dict[str, Any] = {
        name: str(converted(source, show, whole_bytes=whole_bytes)) for name, source in sources.items()
    }
    return replace(settings, **folders)
