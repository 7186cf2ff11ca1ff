"""Validate objects of several kinds, told apart by their type field."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel

from reprise.server.errors import shortened
from reprise.server.validation.field_errors import field_error


def tagged_union(kinds: Mapping[str, type[BaseModel]]) -> Callable[[object], Any]:
    """Return a validator for objects whose type field selects one of the models.

    Pydantic's unions are not used: their errors list every member and contain paths that are not in the
    request.

    kinds: the models by their type.
    """

    def choose(given: object) -> Any:
        if isinstance(given, tuple(kinds.values())):
            return given
        if not isinstance(given, dict):
            raise field_error("invalid_type", "must be an object")
        kind = given.get("type")
        if kind is None:
            raise field_error("missing_required_parameter", "is missing", ".type")
        if not isinstance(kind, str):
            raise field_error("invalid_type", "must be a string", ".type")
        if kind in kinds:
            return kinds[kind].model_validate(given)
        known = ", ".join(f"'{name}'" for name in kinds)
        raise field_error("invalid_value", f"is '{shortened(kind)}'; this server supports {known}", ".type")

    return choose
