"""Have models that are no folders yet converted before they are served."""

import sys
from dataclasses import replace
from typing import Any

from cli.models.convert import progress_bar
from config.settings import Settings


def with_converted(settings: Settings) -> Settings:
    """Return settings that name folders, converted now or before, for GGUF files and packaged models.

    Ends the process with status 1 and a sentence if one cannot be converted.
    """
    # Imported here so that other commands do not load it.
    from engine.model.convert.sources import is_converted_first

    named = {"model": settings.model, "draft_model": settings.draft_model}
    sources = {name: source for name, source in named.items() if source and is_converted_first(source)}
    if not sources:
        return settings
    from engine.model.convert.kept import converted
    from engine.model.convert.options import ConvertError

    try:
        folders: dict[str, Any] = {
            name: str(converted(source, progress_bar)) for name, source in sources.items()
        }
    except ConvertError as fault:
        print(f"reprise: {fault}", file=sys.stderr)
        raise SystemExit(1) from fault
    return replace(settings, **folders)
