"""Convert GGUF files and packaged models into folders before they are served."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reprise.cli.arguments import failing
from reprise.cli.models.convert import progress_bar
from reprise.config.settings import Settings

if TYPE_CHECKING:
    # Importing it takes seconds.
    from reprise.engine.model.convert.options import Report

Tell = Callable[[str, float], None]
"""Called with what is done now, and the share of it that is over."""


WHOLE_SHARE = 0.5
"""Share of the memory for models and caches that weights may take that are dequantised for drafts."""


def whole_bytes() -> int:
    """Return the bytes that weights may take that are dequantised for drafts."""
    # Imported here so that other commands do not load it.
    from reprise.engine.memory.machine import usable_bytes

    return int(WHOLE_SHARE * usable_bytes())


def with_converted(settings: Settings, tell: Tell = lambda _what, _share: None) -> Settings:
    """Return the settings with converted folders in place of GGUF files and packaged models.

    Converts each model that was not converted before. Raises FailedError if a model cannot be converted.
    tell: called with what is done, and the share of it that is over.
    """
    # Imported here so that other commands do not load it.
    from reprise.engine.model.convert.sources import is_converted_first

    named = {"model": settings.model, "draft_model": settings.draft_model}
    sources = {name: source for name, source in named.items() if source and is_converted_first(source)}
    if not sources:
        return settings
    from reprise.engine.model.convert.kept import converted
    from reprise.engine.model.convert.options import ConvertError

    @contextmanager
    def show(what: str) -> "Iterator[Report]":
        tell(what, 0.0)
        with progress_bar(what) as report:

            def advance(done: int, total: int) -> None:
                report(done, total)
                tell(what, done / total)

            yield advance

    with failing(ConvertError):
        folders: dict[str, Any] = {
            name: str(converted(source, show, whole_bytes=whole_bytes())) for name, source in sources.items()
        }
    return replace(settings, **folders)
