"""Define the errors with which the engine refuses a request or a model."""

from typing import Literal

from reprise.config.errors import RepriseError


class ModelError(RepriseError):
    """The model cannot be served; the message says why."""


class UnbrokenTextError(Exception):
    """A text has too many characters without a place to split it."""


class GrammarError(ValueError):
    """A grammar cannot be used; the message says which part of it is at fault."""


class GrammarCostError(GrammarError):
    """An answer exceeds what its grammar may cost. The message is a phrase that follows the field's name."""


RETRY_AFTER_S = 1.0
"""Seconds after which to retry if there is no better estimate."""


class EngineError(Exception):
    """The engine refuses a request. retry_after_s: seconds after which a retry may succeed."""

    def __init__(
        self,
        code: Literal["engine_dead", "queue_full", "draining"],
        message: str,
        retry_after_s: float = RETRY_AFTER_S,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s


class SharedTableError(Exception):
    """The shared n-gram table cannot be shown, saved or loaded; the message says why."""


LoadFault = Literal["unknown", "not_loadable", "too_large", "unreachable", "no_space", "draining"]


class ModelLoadError(Exception):
    """A model that a request asks for cannot be loaded; the message is one line that says why.

    kind: unknown (no such model), not_loadable (its files are at fault), too_large (for the memory of all
    models), unreachable (the hub, now), no_space (the disk is full), or draining (the server is stopping).
    """

    def __init__(self, kind: LoadFault, message: str) -> None:
        super().__init__(message)
        self.kind: LoadFault = kind
