"""The bodies that load, unload and pull models, and the time for which a request keeps its model loaded."""

import re
from typing import Annotated

from pydantic import Field

from reprise.server.errors import bad_field, shortened
from reprise.server.validation.fields import RequestModel

KeepAlive = Annotated[
    float | str | None,
    Field(
        description="With several models: seconds for which the model stays loaded without more requests, or "
        'a duration such as "5m"; below 0 for good. null: --idle-unload-s. Ollama\'s.'
    ),
]
"""Ollama's keep_alive: seconds, or a text such as "5m" or "1h30m"; negative for good."""

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"-?(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ms|s|m|h))+")
_PART = re.compile(r"([0-9.]+)(ms|s|m|h)")
_NUMBER = re.compile(r"-?[0-9]{1,9}(?:\.[0-9]{1,9})?")


class ModelRequest(RequestModel):
    """The body that names a model."""

    model: str = Field(description="The model's name, as GET /v1/models has it.")


class LoadRequest(ModelRequest):
    """The body of POST /v1/models/load."""

    keep_alive: KeepAlive = None


class PullRequest(RequestModel):
    """The body of POST /v1/models/pull."""

    model: str = Field(description="The model's name on the hub, such as mlx-community/Qwen3-8B-4bit.")


def keep_alive_s(given: KeepAlive) -> float | None:
    """Return for how many seconds to keep a model loaded; below 0 for good. None if the request does not say.

    Raises BadRequestError if the given value is neither a number nor a duration.
    """
    if given is None or isinstance(given, int | float):
        return given
    if _NUMBER.fullmatch(given):
        return float(given)
    if _DURATION.fullmatch(given):
        seconds = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(given))
        return -seconds if given.startswith("-") else seconds
    phrase = f"is '{shortened(given)}'; it must be seconds, or a duration such as \"5m\""
    raise bad_field("keep_alive", phrase)
