"""Constraints on the answer, and the grammars that they become."""

import contextlib
import json
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from reprise.engine.interface.request import Grammar
from reprise.server.errors import BadRequestError
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.fields import Notes
from reprise.server.requests.json_body import parse_liberally
from reprise.server.requests.json_schema import check_schema, find_endless
from tests.machine import allowed_s
from tests.server.openai_shapes import assert_error

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES = {CHAT: {"messages": [{"role": "user", "content": "hello"}]}, COMPLETIONS: {"prompt": "hello"}}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
}
CLOSED = json.dumps({**PERSON, "additionalProperties": False}, separators=(",", ":"))
SCHEMA = "response_format.json_schema.schema"


def json_schema(schema, **fields):
    named = {"name": "it", "schema": schema, **fields}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


GOOD = [
    ({"response_format": {"type": "json_object"}}, Grammar("json_schema", '{"type":"object"}')),
    (json_schema(PERSON), Grammar("json_schema", CLOSED)),
    (json_schema({}, strict=False, description="x"), Grammar("json_schema", "{}")),
    (json_schema({"type": "object"}, strict=True), Grammar("json_schema", '{"type":"object"}')),
    ({"guided_json": PERSON}, Grammar("json_schema", CLOSED)),
    ({"guided_json": '{"type": "integer"}'}, Grammar("json_schema", '{"type":"integer"}')),
    ({"guided_regex": "[a-z]{1,5}"}, Grammar("regex", "[a-z]{1,5}")),
    ({"guided_choice": ["yes", "no"]}, Grammar("regex", "yes|no")),
    ({"guided_choice": ["a.b|c", "(1/2)"]}, Grammar("regex", r"a\.b\|c|\(1\/2\)")),
    ({"guided_grammar": 'start: "a"+'}, Grammar("lark", 'start: "a"+')),
    ({"response_format": {"type": "text"}, "guided_regex": "a"}, Grammar("regex", "a")),
]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("fields", "grammar"), GOOD, ids=repr)
async def test_a_constraint_becomes_a_grammar_that_is_compiled_before_the_answer(
    client, engine, path, fields, grammar
):
    response = await client.post(path, json={**BODIES[path], **fields})
    assert response.status_code == 200, response.text
    assert engine.compiled_grammars == [grammar]
    assert engine.requests[-1].grammar == grammar
    assert engine.requests[-1].grammar.compiled == 1


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}, {"response_format": None}])
async def test_any_text_needs_no_grammar(client, engine, fields):
    assert (await client.post(CHAT, json={**BODIES[CHAT], **fields})).status_code == 200
    assert engine.compiled_grammars == []
    assert engine.requests[-1].grammar is None


async def test_the_order_of_properties_stays_as_it_was_sent(client, engine):
    schema = {"type": "object", "properties": {"z": {}, "a": {}, "m": {}}}
    await client.post(CHAT, json={**BODIES[CHAT], **json_schema(schema)})
    assert list(json.loads(engine.requests[-1].grammar.text)["properties"]) == ["z", "a", "m"]


FAULTS = [
    ('Unimplemented keys: ["not", "if"]', "uses 'not', 'if', which cannot be enforced"),
    ("oneOf constraints are not supported. Enable 'coerce_one_of' option", "use 'anyOf'"),
    ("Resource 'http://x/y' is not present in a registry and retrieving it failed: no", "nothing is fetched"),
    ("Unknown format: idn-email", "cannot be enforced: Unknown format: idn-email"),
    (
        "no answer can begin: too much\n<state>\nsecret\n</state>",
        "cannot be enforced: no answer can begin: too much.",
    ),
]


@pytest.mark.parametrize(("fault", "told"), FAULTS)
async def test_an_unsupported_grammar_is_a_400_that_names_the_construct(client, engine, fault, told):
    engine.grammar_fault = fault
    for fields, param in ((json_schema(PERSON), SCHEMA), ({"guided_json": PERSON}, "guided_json")):
        response = await client.post(CHAT, json={**BODIES[CHAT], **fields})
        assert response.status_code == 400
        message = assert_error(response.json(), param, "unsupported_grammar")
        assert told in message
        assert "secret" not in message
    assert engine.requests == []


def nested(levels):
    schema = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


ENDLESS = {
    "itself": {"$ref": "#"},
    "a cycle of references": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    },
    "a required member of its own kind": {
        "type": "object",
        "properties": {"next": {"$ref": "#"}},
        "required": ["next"],
    },
    "an item of its own kind": {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    "all of itself": {"allOf": [{"$ref": "#"}]},
    "any of itself": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
    "deep within": {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {"type": "array", "prefixItems": [{"$ref": "#/$defs/a"}], "minItems": 1}},
    },
}
WITH_AN_END = {
    "a tree": {
        "$ref": "#/$defs/n",
        "$defs": {
            "n": {
                "type": "object",
                "properties": {
                    "children": {"type": "array", "items": {"$ref": "#/$defs/n"}},
                    "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]},
                },
                "required": ["children", "next"],
            }
        },
    },
    "an optional member of its own kind": {"type": "object", "properties": {"next": {"$ref": "#"}}},
    "any type": {"properties": {"next": {"$ref": "#"}}, "required": ["next"]},
    "or null": {"type": ["object", "null"], "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
    "escaped": {"$ref": "#/$defs/a~1b~0c", "$defs": {"a/b~c": {"type": "null"}}},
    "a list's entry": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/anyOf/0"}}]},
}


@pytest.mark.parametrize("schema", ENDLESS.values(), ids=ENDLESS)
def test_a_schema_that_always_contains_itself_is_found(schema):
    assert find_endless(schema) is not None


@pytest.mark.parametrize("schema", WITH_AN_END.values(), ids=WITH_AN_END)
def test_recursion_that_can_end_is_fine(schema):
    assert find_endless(schema) is None
    check_schema(schema)


BAD_SCHEMAS = [
    (ENDLESS["itself"], "", "invalid_schema", "has no end"),
    (ENDLESS["deep within"], "", "invalid_schema", "'.$defs.a' always contains itself"),
    ({"enum": ["x" * 100] * 90_000}, "", "schema_too_large", "a schema may have at most 65536"),
    (nested(51), "", "schema_too_deep", "at most 50 levels"),
    ({"properties": {str(i): {} for i in range(501)}}, "", "schema_too_large", "has 501 properties"),
    ({"items": [{}]}, ".items", "unsupported_schema", "use prefixItems"),
    ({"x-guidance": {"lenient": True}}, ".x-guidance", "unsupported_schema", "leave it out"),
    (
        {"properties": {"a": {"pattern": "a" * 4097}}},
        ".properties.a.pattern",
        "invalid_value",
        "at most 4096",
    ),
    ({"patternProperties": {"a" * 4097: {}}}, ".patternProperties", "invalid_value", "at most 4096"),
]


@pytest.mark.parametrize(("schema", "at", "code", "told"), BAD_SCHEMAS, ids=lambda value: repr(value)[:60])
def test_schemas_beyond_the_limits_are_refused_at_once(schema, at, code, told):
    # Not through an app: one of the bodies is larger than the app's limit.
    asked = json_schema(schema)
    asked["response_format"]["json_schema"]["strict"] = True
    body = json.dumps({**BODIES[CHAT], **asked}).encode()
    start_s = time.thread_time()
    with pytest.raises(BadRequestError) as refused:
        parse_liberally(body, ChatRequest, {}, Notes(refuses=True))
    spent_s = time.thread_time() - start_s
    assert told in assert_error(refused.value.body(), SCHEMA + at, code)
    assert spent_s < allowed_s(0.1)


async def test_keywords_count_only_where_a_schema_is_expected(client):
    schema = {"type": "object", "properties": {"nullable": {"const": True}, "items": {"enum": [["a"]]}}}
    assert (await client.post(CHAT, json={**BODIES[CHAT], **json_schema(schema)})).status_code == 200


KEYWORDS = (
    *(
        "type",
        "properties",
        "items",
        "required",
        "minItems",
        "prefixItems",
        "allOf",
        "anyOf",
        "oneOf",
        "$ref",
    ),
    *("multipleOf", "pattern", "patternProperties", "enum", "const", "format", "$defs", "a"),
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        ["object", "array", "null", "#", "#/", "#/$defs/a", "#/properties/a", "#/items/0", "a{5}"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(KEYWORDS), VALUES, max_size=5))
def test_every_schema_passes_or_is_refused(schema):
    with contextlib.suppress(PydanticCustomError):
        check_schema(schema)


BAD_FIELDS = [
    ({"response_format": "json"}, "response_format", "invalid_type", "must be an object"),
    ({"response_format": {}}, "response_format.type", "missing_required_parameter", "missing"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value", "'json_schema'"),
    ({"response_format": {"type": "json_object", "n": 1}}, "response_format.n", "unknown_parameter", ""),
    (
        {"response_format": {"type": "json_schema"}},
        "response_format.json_schema",
        "missing_required_parameter",
        "",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        SCHEMA,
        "missing_required_parameter",
        "",
    ),
    (json_schema({}, name="a b"), "response_format.json_schema.name", "invalid_value", ""),
    (json_schema({}, name="x" * 65), "response_format.json_schema.name", "invalid_value", "64"),
    (json_schema({}, strict=1), "response_format.json_schema.strict", "invalid_type", "boolean"),
    (json_schema([]), SCHEMA, "invalid_type", "a JSON schema"),
    (json_schema(True), SCHEMA, "invalid_type", "a JSON schema"),
    ({"guided_json": "{"}, "guided_json", "invalid_json", "not valid JSON"),
    ({"guided_json": "5"}, "guided_json", "invalid_type", "a JSON schema"),
    ({"guided_json": " " * 70_000}, "guided_json", "schema_too_large", "65536"),
    ({"guided_regex": ""}, "guided_regex", "invalid_type", "not empty"),
    ({"guided_regex": 5}, "guided_regex", "invalid_type", "a regular expression"),
    ({"guided_regex": "a" * 4097}, "guided_regex", "invalid_value", "at most 4096"),
    ({"guided_choice": []}, "guided_choice", "invalid_value", "between 1 and 1000"),
    ({"guided_choice": ["a", ""]}, "guided_choice[1]", "invalid_type", "not empty"),
    ({"guided_choice": "a"}, "guided_choice", "invalid_type", "an array"),
    ({"guided_choice": ["x" * 20_000] * 2}, "guided_choice", "invalid_value", "32768"),
    ({"guided_grammar": " "}, "guided_grammar", "invalid_type", "not empty"),
    ({"guided_grammar": "start: a\n" * 1001}, "guided_grammar", "invalid_value", "too long"),
    ({"guided_grammar": 'start: "a"{1001}'}, "guided_grammar", "invalid_value", "at most 1000 repetitions"),
    (
        {"guided_grammar": 'start: "a" ~ 1..99999'},
        "guided_grammar",
        "invalid_value",
        "at most 1000 repetitions",
    ),
    ({"guided_grammar": "start: %json {"}, "guided_grammar", "invalid_value", "%json"),
    (
        {"guided_grammar": 'start: %json {"nullable": true}'},
        "guided_grammar.nullable",
        "unsupported_schema",
        "",
    ),
    (
        {"guided_grammar": "start: a\na[temperature=1]: /x/"},
        "guided_grammar",
        "unsupported_value",
        "temperature",
    ),
    (
        {"guided_regex": "a", "guided_choice": ["a"]},
        "guided_regex",
        "invalid_value",
        "guided_choice cannot be combined",
    ),
    (
        {"response_format": {"type": "json_object"}, "guided_json": {}},
        "response_format",
        "invalid_value",
        "guided_json cannot be combined",
    ),
]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("fields", "param", "code", "told"), BAD_FIELDS, ids=lambda value: repr(value)[:60])
async def test_wrong_fields_are_400s_that_name_them(strict_client, engine, path, fields, param, code, told):
    response = await strict_client.post(path, json={**BODIES[path], **fields})
    assert response.status_code == 400
    assert told in assert_error(response.json(), param, code)
    assert engine.compiled_grammars == []


@pytest.mark.parametrize("text", ["a.b", "(1/2)", "x|y", "[z]^$", "\\n", "{3}", "a-b&c~d#e", "✓\n\t"])
async def test_choices_are_matched_literally(client, engine, text):
    await client.post(CHAT, json={**BODIES[CHAT], "guided_choice": ["other", text]})
    assert re.fullmatch(engine.requests[-1].grammar.text, text)
    assert not re.fullmatch(engine.requests[-1].grammar.text, text + "x")
