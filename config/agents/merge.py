"""Merge settings into what a configuration file holds already."""

from collections.abc import Mapping
from typing import Any


def merge(held: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the held settings with the given ones set.

    Tables are merged key by key. In a list of tables, one with the same "name" (or "displayName") is
    replaced, in its place, and others are added at the end. Any other value is replaced. Neither argument is
    changed.
    """
    merged = dict(held)
    for key, value in settings.items():
        before = held.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            merged[key] = merge(before, value)
        elif isinstance(before, list) and isinstance(value, list) and _are_named(value):
            merged[key] = _merge_named(before, value)
        else:
            merged[key] = value
    return merged


def _are_named(values: list[Any]) -> bool:
    return all(_name_of(value) is not None for value in values)


def _merge_named(held: list[Any], settings: list[Any]) -> list[Any]:
    by_name = {_name_of(value): value for value in settings}
    kept = [by_name.pop(_name_of(value), value) for value in held]
    return kept + list(by_name.values())


def _name_of(value: object) -> object:
    return value.get("name", value.get("displayName")) if isinstance(value, Mapping) else None
