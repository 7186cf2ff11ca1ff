"""Convert a model's JSON schema into table rows: one per field, nested fields after their object."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from reprise.server.reference.schema_text import Schema, alternatives, code, describe_type, resolved
from reprise.server.validation.fields import REFUSED

FIRST_VERSION = "0.1.0"
"""The version of everything without a version of its own."""
SINCE = "x-since"
"""The key in a field's JSON schema, and in a route's OpenAPI entry, for the version that added it."""


class UndocumentedError(Exception):
    """A field has no description."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table of fields.

    path: a.b for field b of the object a, a[].b for field b of the objects in the array a.
    type, default: Markdown; empty if there is none.
    refused: for an unsupported field, the error message for other values; None for a supported field.
    """

    path: str
    type: str
    default: str
    description: str
    since: str
    refused: str | None = None

    @property
    def has_no_effect(self) -> bool:
        """Whether the field is accepted and ignored, so that clients need no change."""
        return self.description.rpartition("`: ")[2].startswith(("Accepted", "Left out"))


def read_rows(schema: Schema) -> list[Row]:
    """Return the rows of all fields of an object. Raises UndocumentedError."""
    return list(_rows("", [schema], schema.get("$defs", {})))


def _rows(prefix: str, variants: Sequence[Schema], definitions: Schema) -> Iterator[Row]:
    """Yield the fields of an object that fits one of the variants, required ones first.

    Fields that are the same in several variants get one row.
    """
    names = dict.fromkeys(name for variant in variants for name in variant["properties"])
    required = {name for variant in variants for name in variant.get("required", ())}
    for name in sorted(names, key=lambda name: name not in required):
        holders = [variant for variant in variants if name in variant["properties"]]
        path = f"{prefix}{name}"
        if all(_constants(holder, name) for holder in holders) and len(holders) > 1:
            yield _type_row(path, holders, name)
            continue
        rows: dict[Row, list[Schema]] = {}
        for holder in holders:
            rows.setdefault(_row(path, holder, name, definitions), []).append(holder)
        for row, owners in rows.items():
            where = "" if len(owners) == len(variants) else f"{', '.join(map(_label, owners))}: "
            yield Row(row.path, row.type, row.default, where + row.description, row.since, row.refused)
            if row.refused is None:
                for suffix, inner in _inner(owners[0]["properties"][name], definitions):
                    yield from _rows(f"{path}{suffix}.", inner, definitions)


def _row(path: str, holder: Schema, name: str, definitions: Schema) -> Row:
    schema = holder["properties"][name]
    default = "required" if name in holder.get("required", ()) else ""
    if schema.get("default") not in (None, [], {}) and not isinstance(schema["default"], dict):
        default = code(schema["default"])
    return Row(
        path,
        describe_type(schema, definitions),
        default,
        _description(path, holder, name, definitions),
        schema.get(SINCE, FIRST_VERSION),
        schema.get(REFUSED),
    )


def _description(path: str, holder: Schema, name: str, definitions: Schema) -> str:
    """Return the field's description.

    Without one, return that of the object that the field holds or, for a type field, that it is in.
    Raises UndocumentedError.
    """
    schema = holder["properties"][name]
    objects = [held for suffix, group in _inner(schema, definitions) if not suffix for held in group]
    if "description" in schema:
        return str(schema["description"])
    if _constants(holder, name):
        return str(holder["description"])
    if len(objects) == 1 and "description" in objects[0]:
        return str(objects[0]["description"])
    raise UndocumentedError(f"{holder['title']}.{name} ({path}) has no description")


def _type_row(path: str, holders: Sequence[Schema], name: str) -> Row:
    """Return the row of the type field that distinguishes the variants of an object."""
    variants = [(", ".join(map(code, _constants(holder, name))), holder["description"]) for holder in holders]
    return Row(
        path,
        ", ".join(constants for constants, _ in variants),
        "",
        " ".join(f"{constants}: {description}" for constants, description in variants),
        FIRST_VERSION,
    )


def _constants(holder: Schema, name: str) -> list[Any]:
    """Return the values of a field named type; empty for other fields."""
    schema = holder["properties"].get(name, {})
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    return values if name == "type" else []


def _label(holder: Schema) -> str:
    return ", ".join(map(code, _constants(holder, "type"))) or str(holder["title"])


def _inner(schema: Schema, definitions: Schema) -> Iterator[tuple[str, list[Schema]]]:
    """Yield the objects that a field may hold, with "", and those that its array may hold, with "[]"."""
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
