"""Objects of schemas that are not strict are closed, which only ever narrows what a schema allows."""

import json

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprise.engine.sandbox.child_process import satisfies
from reprise.server.requests.json_schema import closed, modern
from tests.server.fake_engine import says
from tests.server.requests.tool_schemas import of_tools

NAMES = st.sampled_from("abc")
LEAVES = st.sampled_from([{}, True, False, {"type": "integer"}, {"const": 1}])
REFERENCE = {"$ref": "#/$defs/d"}
VALUES = st.recursive(
    st.sampled_from([0, 1, "x", None]),
    lambda inner: st.dictionaries(NAMES, inner) | st.lists(inner),
    max_leaves=6,
)


def _schemas(inner, **more):
    lists = st.lists(inner, min_size=1, max_size=3)
    applicators = {"not": inner, "if": inner, "then": inner, "else": inner, "contains": inner}
    keywords = {
        "properties": st.dictionaries(NAMES, inner),
        "required": st.lists(NAMES, unique=True),
        "type": st.sampled_from(["object", "array"]),
        "minProperties": st.integers(0, 3),
        "additionalProperties": inner,
        "patternProperties": st.dictionaries(NAMES, inner),
        "items": inner,
        "anyOf": lists,
        "oneOf": lists,
        "allOf": lists,
        "propertyNames": inner,
        "dependentSchemas": st.dictionaries(NAMES, inner),
        "dependentRequired": st.just({"a": ["b"]}),
        "unevaluatedProperties": inner,
        "description": st.just("a"),
        **applicators,
        **more,
    }
    return st.fixed_dictionaries({}, optional=keywords)


def referring(inner):
    return _schemas(inner, **{"$ref": st.just(REFERENCE["$ref"])})


# Definitions refer to nothing, so that no reference leads to itself.
DEFINITIONS = st.recursive(LEAVES, _schemas, max_leaves=5)
SCHEMAS = st.recursive(LEAVES | st.just(REFERENCE), referring, max_leaves=8)


def is_valid(value, schema):
    return jsonschema.Draft202012Validator(schema).is_valid(value)


@settings(max_examples=300, deadline=None)
@given(root=referring(SCHEMAS), definition=DEFINITIONS, value=VALUES)
def test_every_value_of_the_closed_schema_is_one_of_the_open_one(root, definition, value):
    schema = {**root, "$defs": {"d": definition}}
    before = json.dumps(schema)
    if is_valid(value, closed(schema)):
        assert is_valid(value, schema)
    assert json.dumps(schema) == before


@pytest.mark.parametrize(("schema", "value"), of_tools())
def test_what_a_tool_declares_can_still_be_written(schema, value):
    open_text, closed_text = (json.dumps(modern(one)) for one in (schema, closed(schema)))
    if satisfies(json.dumps(value), open_text):
        assert satisfies(json.dumps(value), closed_text)


A, B = {"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}
CLOSED_A, CLOSED_B = ({**one, "additionalProperties": False} for one in (A, B))


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (A, CLOSED_A),
        ({"type": "array", "items": A}, {"type": "array", "items": CLOSED_A}),
        ({"anyOf": [A, B]}, {"anyOf": [CLOSED_A, CLOSED_B]}),
        (
            {"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": A}},
            {"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": CLOSED_A}},
        ),
        ({"allOf": [A], "description": "pydantic's"}, {"allOf": [CLOSED_A], "description": "pydantic's"}),
        (
            {"properties": {"x": {"oneOf": [A, B]}}},
            {"properties": {"x": {"oneOf": [A, B]}}, "additionalProperties": False},
        ),
    ],
)
def test_objects_with_properties_are_closed(schema, wanted):
    assert closed(schema) == wanted


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {}},
        {**A, "additionalProperties": True},
        {**A, "patternProperties": {"^x": {}}},
        {**A, "required": ["z"]},
        {**A, "required": [["a"]]},
        {**A, "minProperties": 2},
        {**A, "anyOf": [B]},
        {"allOf": [A, B]},
        {"not": A},
        {"allOf": [{"$ref": "#/$defs/a"}, B], "$defs": {"a": A}},
        {"$ref": "#/$defs/a", **B, "$defs": {"a": A}},
        {"enum": [A]},
        {"default": A},
    ],
)
def test_where_more_members_may_be_meant_or_needed_nothing_is_closed(schema):
    assert closed(schema) == schema


def ask(client, schema, **fields):
    named = {"name": "x", "schema": schema, **fields}
    body = {"messages": [{"role": "user", "content": "x"}]}
    return client.post(
        "/v1/chat/completions",
        json=body | {"response_format": {"type": "json_schema", "json_schema": named}},
    )


@pytest.mark.parametrize(
    ("fields", "may_add"), [({}, False), ({"strict": False}, False), ({"strict": True}, True)]
)
async def test_only_what_is_not_strict_is_closed(client, engine, fields, may_add):
    engine.script = says('{"a": 1}')
    response = await ask(client, {"type": "object", **A}, **fields)
    assert response.status_code == 200
    assert "x-reprise-relaxed" not in response.headers
    (asked,) = engine.requests
    assert (json.loads(asked.grammar.text).get("additionalProperties", True) is True) == may_add


@pytest.mark.parametrize(("strict", "may_add"), [(False, False), (True, True)])
async def test_calls_of_tools_that_are_not_strict_are_closed(client, engine, strict, may_add):
    engine.script = says("")
    function = {"name": "f", "parameters": {"type": "object", **A}, "strict": strict}
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": function}],
    }
    response = await client.post("/v1/chat/completions", json=body | {"tool_choice": "required"})
    assert response.status_code == 200
    (asked,) = engine.requests
    assert ('"additionalProperties": false' in asked.grammar.text) != may_add
