"""Kinds of schemas that tools really have, each with a value that satisfies it.

Made from the features of the schemas of public tool servers and of those that are derived from OpenAPI, from
pydantic's models, and from zod's.
"""

from typing import Any

OF_VALUES: list[tuple[dict[str, Any] | bool, Any]] = [
    ({"type": "string"}, "a"),
    ({"type": "string", "title": "Path", "default": ".", "examples": ["/tmp"]}, "a b"),
    ({"type": "string", "format": "uri-reference"}, "/x"),
    ({"type": "string", "format": "date-time"}, "2026-01-02T03:04:05Z"),
    ({"type": "string", "format": "int64"}, "12"),
    ({"type": "string", "format": "binary"}, "\u0001"),
    ({"type": "string", "format": "byte", "contentEncoding": "base64"}, "YQ=="),
    ({"type": "string", "contentMediaType": "application/json", "contentSchema": {"type": "object"}}, "{}"),
    ({"type": "string", "format": "email", "maxLength": 254}, "a@b.co"),
    ({"type": "string", "format": "color", "x-component": "picker"}, "#fff"),
    ({"type": "string", "format": "regex"}, "a+"),
    ({"type": "string", "pattern": "^(?!-)[a-z-]+(?<!-)$"}, "a-b"),
    ({"type": "string", "pattern": r"^(\w)\1$"}, "aa"),
    ({"type": "string", "pattern": r"\bword\b"}, "a word"),
    ({"type": "string", "pattern": r"^[\w.+-]+@[\w-]+\.[\w.]+$"}, "a.b@c.de"),
    ({"type": "string", "pattern": r"^\p{L}+$"}, "ż"),
    ({"type": "string", "pattern": r"^(?<year>\d{4})-(?<month>\d\d)$"}, "2026-01"),
    ({"type": "string", "pattern": "^[A-Z]{2,3}$", "minLength": 2, "maxLength": 3}, "ABC"),
    ({"type": "string", "minLength": 1, "maxLength": 100_000}, "a"),
    ({"type": "string", "pattern": "^.{1,20000}$"}, "a"),
    ({"type": "string", "enum": [f"value-{number}" for number in range(800)]}, "value-799"),
    ({"enum": ["a", 1, None, True, 2.5]}, None),
    ({"type": "string", "enum": ["", "asc", "desc"]}, ""),
    ({"enum": ["on", "off"], "enumNames": ["On", "Off"]}, "on"),
    ({"type": "integer", "enum": [1, 2, 3], "x-enum-varnames": ["A", "B", "C"]}, 2),
    ({"const": "fixed"}, "fixed"),
    ({"const": {"a": [1]}}, {"a": [1]}),
    ({"type": "string", "const": "a", "default": "a"}, "a"),
    ({"type": ["string", "null"], "default": None}, None),
    ({"type": "string", "nullable": True}, None),
    ({"type": "string", "nullable": True, "enum": ["a", "b", None]}, None),
    ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Q"}, None),
    ({"type": ["string", "number", "boolean", "null"]}, 2.5),
    ({"type": "any"}, {"a": 1}),
    ({"type": "file"}, "a"),
    ({}, [1]),
    (True, {"a": 1}),
    ({"description": "anything"}, "a"),
    ({"type": "integer", "minimum": 1, "maximum": 100, "default": 30}, 30),
    ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, 1),
    ({"type": "integer", "exclusiveMinimum": 0, "maximum": 9_007_199_254_740_991}, 7),
    ({"type": "integer", "format": "int32"}, 7),
    ({"type": "number", "format": "double", "minimum": -90, "maximum": 90}, -1.5),
    ({"type": "number", "multipleOf": 0.01}, 1.25),
    ({"type": "number", "minimum": 0, "maximum": 1.7976931348623157e308}, 1.5),
    ({"type": "array", "items": {"type": "string"}, "uniqueItems": True, "minItems": 1}, ["a", "b"]),
    ({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}, [1, 2]),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False}, [1, "a"]),
    ({"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "string"}}, [1, "a"]),
    ({"type": "array", "contains": {"type": "integer"}, "minContains": 1}, ["a", 1]),
    ({"type": "array"}, [1, "a"]),
    ({"type": "array", "items": {}}, [1, "a"]),
    ({"type": "array", "items": {"type": "array", "items": {"type": "number"}}}, [[1], []]),
    ({"type": "array", "unevaluatedItems": False, "prefixItems": [{"type": "null"}]}, [None]),
    ({"type": "object"}, {"a": 1}),
    ({"type": "object", "additionalProperties": {"type": "string"}}, {"a": "b"}),
    ({"type": "object", "additionalProperties": {}}, {"a": [1]}),
    ({"type": "object", "properties": {"a": {"type": "string"}}, "minProperties": 1}, {"a": "b"}),
    ({"type": "object", "maxProperties": 2, "additionalProperties": {"type": "integer"}}, {"a": 1}),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, {"a": 1}),
    ({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {}}, {"a": 1}),
    (
        {"type": "object", "patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": False},
        {"x-a": "b"},
    ),
    (
        {
            "type": "object",
            "patternProperties": {"^(?!_)": {"type": "integer"}},
            "additionalProperties": False,
        },
        {"a": 1},
    ),
    (
        {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
        {"a": 1, "b": 2},
    ),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "dependencies": {"a": ["b"]}}, {"a": 1, "b": 2}),
    ({"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}}, {"b": 2}),
    ({"type": "object", "properties": {"a": {"type": "string"}}, "unevaluatedProperties": False}, {"a": "b"}),
    ({"type": "object", "properties": {"a": {"type": "string", "required": True}}}, {"a": "b"}),
    ({"type": "object", "properties": {"a": {"type": "string"}}, "required": None}, {"a": "b"}),
    ({"not": {"type": "null"}}, 1),
    ({"type": "string", "not": {"enum": ["root"]}}, "a"),
    ({"type": "object", "not": {"required": ["a", "b"]}}, {"a": 1}),
    ({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}, ["a"]),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, 2.5),
    ({"oneOf": [{"type": "string", "format": "uri"}, {"type": "string", "minLength": 9}]}, "http://a"),
    ({"oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]}, "b"),
    (
        {
            "type": "object",
            "properties": {"id": {"type": "string"}, "name": {"type": "string"}},
            "oneOf": [{"required": ["id"]}, {"required": ["name"]}],
        },
        {"name": "a"},
    ),
    (
        {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": kind}, kind: {}}, "required": ["kind"]}
                for kind in ("a", "b", "c")
            ],
            "discriminator": {"propertyName": "kind"},
        },
        {"kind": "b", "b": 1},
    ),
    ({"anyOf": [{"type": "string"}, {"type": "integer"}], "description": "id or name"}, 7),
    ({"anyOf": [{"minimum": 1}, {"maxLength": 3}]}, 7),
    (
        {
            "allOf": [{"type": "object", "properties": {"a": {}}}, {"required": ["b"]}],
            "properties": {"b": {}},
        },
        {"b": 1},
    ),
    ({"allOf": [{"type": "string"}], "title": "Named", "nullable": True}, None),
    ({"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "z$"}]}, "az"),
    (
        {
            "type": "object",
            "if": {"required": ["a"]},
            "then": {"required": ["b"]},
            "else": {"required": ["c"]},
        },
        {"c": 1},
    ),
    ({"type": "object", "$ref": "https://example.com/schemas/user.json"}, {"a": 1}),
    ({"$ref": "#/$defs/missing"}, "a"),
    ({"$dynamicRef": "#node"}, "a"),
    ({"type": "string", "readOnly": True, "deprecated": True, "example": "x", "xml": {"name": "x"}}, "a"),
    ({"type": "string", "minLength": 5, "maxLength": 2, "x-note": "a mistake"}, "abc"),
    ({"type": "string", "enum": ["x" * 5000, "y"]}, "y"),
]
"""Schemas of one property."""

_TREE = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
    },
    "required": ["name"],
}
OF_ARGUMENTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "object"}, {}),
    ({"type": "object", "properties": {}, "additionalProperties": False}, {}),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "type": "object", "id": "tool"}, {"a": 1}),
    (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"a": {"$ref": "#/definitions/A"}},
            "definitions": {"A": {"type": "string"}},
        },
        {"a": "b"},
    ),
    ({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "$comment": "x"}, {}),
    ({"$schema": "https://example.com/own-dialect", "type": "object"}, {}),
    (
        {"type": "object", "properties": {"root": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": _TREE}},
        {"root": {"name": "a", "children": [{"name": "b"}]}},
    ),
    ({"type": "object", "properties": {"next": {"$ref": "#"}, "value": {"type": "integer"}}}, {"next": {}}),
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}}, {"b": 1}),
    ({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(120)}}, {"p1": "a"}),
    (
        {
            "type": "object",
            "properties": {f"at{n}": {"type": "string", "format": "date"} for n in range(12)},
            "anyOf": [{"required": ["at0"]}, {"required": ["at1"]}],
        },
        {"at1": "2026-01-02"},
    ),
    (
        {
            "type": "object",
            "properties": {
                f"o{n}": {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"x": {}}}]}
                for n in range(20)
            },
            "allOf": [{"anyOf": [{"required": [f"o{n}"]} for n in range(20)]}] * 2,
        },
        {"o1": "a"},
    ),
]


def of_tools() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return all schemas as those of a tool's arguments, each with arguments that satisfy it."""
    wrapped = [
        ({"type": "object", "properties": {"x": schema}, "required": ["x"]}, {"x": value})
        for schema, value in OF_VALUES
    ]
    return [*wrapped, *OF_ARGUMENTS]


MISTAKEN = [of_arguments for of_arguments, _ in of_tools() if "a mistake" in str(of_arguments)]
"""Schemas that no value satisfies."""
