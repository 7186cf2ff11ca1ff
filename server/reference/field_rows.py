"""The fields of a model, one row each, those of nested objects after the object."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from server.reference.schema_text import Schema, alternatives, code, in_words, resolved
from server.validation.fields import REFUSED

FIRST_VERSION = "0.1.0"
"""Since when there is what does not say otherwise."""
SINCE = "x-since"
"""In the JSON schema of a field, and in what a route says of itself: the version that brought it."""


class UndocumentedError(Exception):
    """A field says neither what it does nor what it holds."""


@dataclass(frozen=True, slots=True)
class Row:
    """A field. path: a.b within a, a[].b within the entries of a. kind, default: Markdown; empty for none.

    refused: what clients are told that send anything but what passes; None for a field that works.
    """

    path: str
    kind: str
    default: str
    does: str
    since: str
    refused: str | None = None

    @property
    def has_no_effect(self) -> bool:
        """Whether it is taken only so that clients need no change."""
        return self.does.rpartition("`: ")[2].startswith("Accepted")


def read_rows(schema: Schema) -> list[Row]:
    """All fields of an object, from its JSON schema. Raises UndocumentedError."""
    return list(_rows("", [schema], schema.get("$defs", {})))


def _rows(prefix: str, variants: Sequence[Schema], definitions: Schema) -> Iterator[Row]:
    """The fields of an object of one of these kinds, required ones first; what several have alike once."""
    names = dict.fromkeys(name for variant in variants for name in variant["properties"])
    required = {name for variant in variants for name in variant.get("required", ())}
    for name in sorted(names, key=lambda name: name not in required):
        holders = [variant for variant in variants if name in variant["properties"]]
        path = f"{prefix}{name}"
        if all(_constants(holder, name) for holder in holders) and len(holders) > 1:
            yield _kinds(path, holders, name)
            continue
        rows: dict[Row, list[Schema]] = {}
        for holder in holders:
            rows.setdefault(_row(path, holder, name, definitions), []).append(holder)
        for row, having in rows.items():
            where = "" if len(having) == len(variants) else f"{', '.join(map(_label, having))}: "
            yield Row(row.path, row.kind, row.default, where + row.does, row.since, row.refused)
            if row.refused is None:
                for suffix, inner in _inner(having[0]["properties"][name], definitions):
                    yield from _rows(f"{path}{suffix}.", inner, definitions)


def _row(path: str, holder: Schema, name: str, definitions: Schema) -> Row:
    schema = holder["properties"][name]
    default = "required" if name in holder.get("required", ()) else ""
    if schema.get("default") not in (None, [], {}) and not isinstance(schema["default"], dict):
        default = code(schema["default"])
    return Row(
        path,
        in_words(schema, definitions),
        default,
        _does(path, holder, name, definitions),
        schema.get(SINCE, FIRST_VERSION),
        schema.get(REFUSED),
    )


def _does(path: str, holder: Schema, name: str, definitions: Schema) -> str:
    """Its own description; else, of a constant, what it stands for, and of an object, what that is."""
    schema = holder["properties"][name]
    objects = [held for suffix, group in _inner(schema, definitions) if not suffix for held in group]
    if "description" in schema:
        return str(schema["description"])
    if _constants(holder, name):
        return str(holder["description"])
    if len(objects) == 1 and "description" in objects[0]:
        return str(objects[0]["description"])
    raise UndocumentedError(f"{holder['title']}.{name} ({path}) has no description")


def _kinds(path: str, holders: Sequence[Schema], name: str) -> Row:
    """The field that tells kinds of objects apart."""
    told = [(", ".join(map(code, _constants(holder, name))), holder["description"]) for holder in holders]
    return Row(
        path,
        ", ".join(constants for constants, _ in told),
        "",
        " ".join(f"{constants}: {description}" for constants, description in told),
        FIRST_VERSION,
    )


def _constants(holder: Schema, name: str) -> list[Any]:
    """The few values that a field called type has, if it is one."""
    schema = holder["properties"].get(name, {})
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    return values if name == "type" else []


def _label(holder: Schema) -> str:
    return ", ".join(map(code, _constants(holder, "type"))) or str(holder["title"])


def _inner(schema: Schema, definitions: Schema) -> Iterator[tuple[str, list[Schema]]]:
    """The kinds of objects that a field holds ("") and those in its array ("[]")."""
    held = list(alternatives(schema, definitions))
    entries = [
        entry
        for one in held
        if one.get("type") == "array"
        for entry in alternatives(resolved(one.get("items", {}), definitions), definitions)
    ]
    for suffix, group in (("", held), ("[]", entries)):
        objects = [one for one in group if "properties" in one]
        if objects:
            yield suffix, objects
