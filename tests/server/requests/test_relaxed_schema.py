"""Schemas that are not strict are enforced as far as possible, and the answer is checked against the rest."""

import contextlib
import json

import pytest
from pydantic_core import PydanticCustomError

from reprise.engine.interface.errors import GrammarError
from reprise.engine.sampling.grammar import Grammars
from reprise.engine.sandbox.child_process import satisfies
from reprise.server.generation.grammars import json_grammar
from reprise.server.requests.json_schema import (
    check_schema,
    modern,
    relax,
    relaxations,
    with_definitions,
)
from tests.engine.support import make_tokenizer
from tests.server.fake_engine import says
from tests.server.openai_shapes import assert_error
from tests.server.requests.tool_schemas import MISTAKEN, of_tools

CHAT = "/v1/chat/completions"
OVERLAPPING = {
    "type": "object",
    "properties": {"x": {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 3}]}},
    "required": ["x"],
}


@pytest.fixture(scope="module")
def grammars():
    return Grammars(make_tokenizer())


# Kinds of schemas that public tools have and the grammar library refuses.
HARD = [
    (OVERLAPPING, ["properties.x.oneOf"]),
    ({"type": "array", "uniqueItems": True, "items": {"type": "integer"}}, ["uniqueItems"]),
    ({"type": "string", "format": "color"}, ["format"]),
    ({"type": ["string", "null"], "format": ["color"]}, ["format"]),
    ({"not": {"type": "string"}, "type": "integer"}, ["not"]),
    ({"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}}, ["if", "then"]),
    ({"type": "object", "propertyNames": {"maxLength": 3}}, ["propertyNames"]),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, ["dependentRequired"]),
    ({"type": "array", "contains": {"type": "integer"}}, ["contains"]),
    ({"type": "object", "properties": {"a": {"$ref": "https://example.com/x"}}}, ["properties.a.$ref"]),
    ({"type": "string", "x-internal": 1}, ["x-internal"]),
    ({"type": "integer", "nullable": True}, []),
    ({"type": "array", "items": [{"type": "integer"}], "additionalItems": False}, []),
    ({"type": "object", "unevaluatedProperties": False}, ["unevaluatedProperties"]),
]


@pytest.mark.parametrize(("schema", "dropped"), HARD)
def test_what_cannot_be_enforced_is_left_out_and_the_rest_compiles(grammars, schema, dropped):
    relaxed = relax(schema)
    assert relaxed.dropped == dropped
    assert grammars.compile(json_grammar(relaxed.schema)).compiled is not None


def test_most_of_them_would_be_refused_whole(grammars):
    refused = 0
    for schema, _ in HARD:
        try:
            grammars.compile(json_grammar(schema))
        except GrammarError:
            refused += 1
    assert refused >= 8


MAX_REFUSED = 0.02
"""As a share of the kinds of schemas that tools have."""


def find_enforceable(grammars, schema):
    """Return as much of a schema as the library takes, and its grammar; None if it takes nothing."""
    for relaxed in relaxations(schema):
        with contextlib.suppress(GrammarError):
            return relaxed, grammars.compile(json_grammar(relaxed.schema))
    return None


def test_hardly_any_schema_of_a_tool_is_refused(grammars):
    schemas = [schema for schema, _ in of_tools()]
    assert len(schemas) >= 90
    refused = [schema for schema in schemas if find_enforceable(grammars, schema) is None]
    assert len(refused) <= MAX_REFUSED * len(schemas)
    whole = 0
    for schema in schemas:
        with contextlib.suppress(GrammarError):
            grammars.compile(json_grammar(schema))
            whole += 1
    assert whole < 0.7 * len(schemas)


@pytest.mark.parametrize(("schema", "value"), of_tools())
def test_what_a_schema_allows_its_relaxed_form_allows_too(grammars, schema, value):
    relaxed, grammar = find_enforceable(grammars, schema)
    assert not relaxed.dropped or relaxed.schema != schema
    text = json.dumps(value, ensure_ascii=False)
    tokens = make_tokenizer().encode_answer(text)
    assert grammars.matcher(grammar).count_allowed(tokens) == len(tokens)
    assert satisfies(text, json.dumps(modern(schema))) in (True, None) or schema in MISTAKEN


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "string", "pattern": "^(?!a)"}, "pattern"),
        (
            {"type": "object", "patternProperties": {"^(?=a)": {}}, "additionalProperties": False},
            "patternProperties",
        ),
        ({"$ref": "#/$defs/none"}, "$ref"),
        ({"type": "any"}, "type"),
        ({"type": "object", "properties": {"a": {}}, "minProperties": 1}, "minProperties"),
        ({"type": "string", "contentEncoding": "base64"}, "contentEncoding"),
    ],
)
def test_what_is_left_out_is_named(schema, path):
    assert relax(schema).dropped == [path]


SHARED = {"schemas": {"a b": {"type": "object", "properties": {"y": {"$ref": "#/components/schemas/n~1m"}}}}}
OPENAPI = {
    "type": "object",
    "properties": {"x": {"$ref": "#/components/schemas/a%20b"}, "z": {"not": {"type": "null"}}},
    "required": ["x"],
    "components": {"schemas": {**SHARED["schemas"], "n/m": {"type": "integer", "maximum": 3}}},
}


@pytest.mark.parametrize(
    ("value", "passes"), [({"x": {"y": 3}}, True), ({"x": {"y": 4}}, False), ({"x": 3}, False)]
)
def test_references_to_components_are_followed_when_a_schema_is_relaxed(grammars, value, passes):
    found = relax(OPENAPI)
    assert found.dropped == ["properties.z.not"]
    matcher = grammars.matcher(json_grammar(found.schema))
    tokens = make_tokenizer().encode(json.dumps(value))
    assert (matcher.count_allowed(tokens) == len(tokens)) == passes
    assert with_definitions(found.schema) == found.schema


def test_the_last_relaxation_keeps_the_type_alone():
    for kind, kept in (
        ("object", {"type": "object"}),
        (["object", "null"], {"type": ["object", "null"]}),
        ([["x"]], {}),
    ):
        *_, last = relaxations({"type": kind, "title": "T"})
        assert last.schema == kept


def test_the_limits_hold_for_what_only_a_reference_names():
    large = {f"p{number}": {"type": "string"} for number in range(501)}
    schema = {"$ref": "#/components/schemas/x", "components": {"schemas": {"x": {"properties": large}}}}
    with pytest.raises(PydanticCustomError, match="501 properties"):
        check_schema(schema)
    endless = {"type": "object", "properties": {"x": {"$ref": "#/components/x"}}, "required": ["x"]}
    with pytest.raises(PydanticCustomError, match="has no end"):
        check_schema({"$ref": "#/components/x", "components": {"x": endless}})


def test_an_endless_schema_is_refused():
    endless = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"], "not": {}}
    with pytest.raises(PydanticCustomError) as refused:
        next(relaxations(endless))
    assert refused.value.type == "invalid_schema"


def test_a_schema_that_can_be_enforced_stays_as_it_is():
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "null"}}}
    assert relax(schema).schema == schema
    assert relax(schema).dropped == []


@pytest.mark.parametrize(
    ("text", "schema", "valid"),
    [
        ('{"x": 2}', OVERLAPPING, True),
        ('{"x": 4}', OVERLAPPING, False),
        ("[1, 1]", {"uniqueItems": True}, False),
        ("{", {}, False),
        ("1", {"$ref": "http://localhost/x"}, None),
        ("1", {"type": 5}, None),
        (json.dumps("a" * 40 + "b"), {"pattern": "^(a+)+$"}, None),
        (json.dumps("ab"), {"pattern": "^a"}, True),
    ],
)
def test_an_answer_is_checked_against_the_whole_schema(text, schema, valid):
    assert satisfies(text, json.dumps(schema)) is valid


def ask(client, schema, **fields):
    json_schema = {"name": "x", "schema": schema, **fields.pop("json_schema", {})}
    body = {"messages": [{"role": "user", "content": "x"}], **fields}
    return client.post(
        CHAT, json=body | {"response_format": {"type": "json_schema", "json_schema": json_schema}}
    )


class _Compiler:
    """Compiles grammars with the real library."""

    def __init__(self, engine, grammars):
        self._inner, self._grammars = engine.compile_grammar, grammars

    def __call__(self, grammar):
        self._grammars.compile(grammar)
        return self._inner(grammar)


@pytest.fixture
def real(engine, grammars):
    engine.compile_grammar = _Compiler(engine, grammars)
    return engine


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("text", "valid"), [('{"x": 2}', True), ('{"x": 4}', False)])
async def test_the_response_says_what_was_not_enforced_and_whether_the_answer_is_valid(
    client, real, text, valid, stream
):
    real.script = says(*text)
    response = await ask(client, OVERLAPPING, stream=stream)
    assert response.status_code == 200
    assert response.headers["x-reprise-relaxed"] == "response_format.json_schema.schema.properties.x.oneOf"
    if stream:
        chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
        assert chunks[-1]["choices"][0]["schema_valid"] is valid
    else:
        assert response.json()["choices"][0]["schema_valid"] is valid


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"guided_json": OVERLAPPING}, "guided_json"),
        ({"guided_json": json.dumps(OVERLAPPING)}, "guided_json"),
        ({"json_schema": OVERLAPPING}, "json_schema"),
        ({"format": OVERLAPPING}, "format"),
        ({"structured_outputs": {"json": OVERLAPPING}}, "structured_outputs.json"),
        (
            {"response_format": {"type": "json_object", "schema": OVERLAPPING}},
            "response_format.json_schema.schema",
        ),
    ],
)
async def test_schemas_of_other_servers_are_relaxed_too(client, real, fields, name):
    real.script = says('{"x": 4}')
    response = await client.post(CHAT, json={"messages": [{"role": "user", "content": "hello"}]} | fields)
    assert response.status_code == 200, response.text
    assert response.headers["x-reprise-relaxed"] == f"{name}.properties.x.oneOf"
    assert response.json()["choices"][0]["schema_valid"] is False


async def test_what_can_be_enforced_whole_is(client, real):
    real.script = says("12")
    schema = {"oneOf": [{"type": "integer"}, {"type": "string"}]}
    response = await ask(client, schema)
    assert "x-reprise-relaxed" not in response.headers
    assert "schema_valid" not in response.json()["choices"][0]
    assert "oneOf" in real.compiled_grammars[-1].text


async def test_a_strict_schema_stays_a_400(client, real):
    response = await ask(client, OVERLAPPING, json_schema={"strict": True})
    assert response.status_code == 400
    assert_error(response.json(), "response_format.json_schema.schema", "unsupported_grammar")
    assert not real.requests


async def test_a_schema_that_is_too_large_stays_a_400(client):
    response = await ask(client, {"type": "object", "properties": {f"p{i}": {} for i in range(9000)}})
    assert_error(response.json(), "response_format.json_schema.schema", "schema_too_large")


async def test_the_arguments_of_a_required_tool_are_checked_too(client, engine):
    def compile_grammar(grammar):
        if "oneOf" in grammar.text:
            raise GrammarError("oneOf constraints are not supported")
        return type(engine).compile_grammar(engine, grammar)

    engine.compile_grammar = compile_grammar
    engine.script = says('<tool_call>\n{"name": "f", "arguments": {"x": 4}}\n</tool_call>')
    tools = [{"type": "function", "function": {"name": "f", "parameters": OVERLAPPING}}]
    body = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": "required"}
    response = await client.post(CHAT, json=body)
    assert response.status_code == 200
    assert response.headers["x-reprise-relaxed"] == "tools[0].function.parameters.properties.x.oneOf"
    assert response.json()["choices"][0]["schema_valid"] is False
    assert engine.tokenizer.rendered_tools[-1][0]["function"]["parameters"] == OVERLAPPING
    tools[0]["function"]["strict"] = True
    assert (await client.post(CHAT, json=body)).status_code == 400


@pytest.mark.parametrize(("schema", "is_followed"), [({"title": "T"}, True), (OVERLAPPING, False)])
async def test_beside_a_strict_tool_others_follow_their_schemas_if_they_can(
    client, real, schema, is_followed
):
    strict = {"name": "g", "strict": True, "parameters": {"type": "object", "additionalProperties": False}}
    other = {"name": "f", "parameters": {"type": "object", "properties": {"only_f": {}}} | schema}
    tools = [{"type": "function", "function": one} for one in (strict, other)]
    body = {"messages": [{"role": "user", "content": "x"}], "tools": tools}
    for _ in range(2):
        response = await client.post(CHAT, json=body)
        assert (response.status_code, "x-reprise-relaxed" in response.headers) == (200, False)
        assert ("only_f" in real.requests[-1].grammar.text) == is_followed


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("x", "valid"), [(2, True), (4, False)])
@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages"])
async def test_every_api_says_whether_a_call_satisfies_the_whole_schema(client, real, path, x, valid, stream):
    real.script = says(f'<tool_call>\n{{"name": "f", "arguments": {{"x": {x}}}}}\n</tool_call>')
    function = {"name": "f", "parameters": OVERLAPPING}
    said = [{"role": "user", "content": "x"}]
    body = {
        CHAT: {
            "messages": said,
            "tools": [{"type": "function", "function": function}],
            "tool_choice": "required",
        },
        "/v1/responses": {
            "input": "x",
            "tools": [{"type": "function", **function}],
            "tool_choice": "required",
        },
        "/v1/messages": {
            "messages": said,
            "max_tokens": 99,
            "tools": [{"name": "f", "input_schema": OVERLAPPING}],
            "tool_choice": {"type": "any"},
        },
    }[path]
    response = await client.post(path, json=body | {"stream": stream})
    assert response.status_code == 200
    schemas = {CHAT: "function.parameters", "/v1/responses": "parameters", "/v1/messages": "input_schema"}
    assert response.headers["x-reprise-relaxed"] == f"tools[0].{schemas[path]}.properties.x.oneOf"
    assert f'"schema_valid":{json.dumps(valid)}' in response.text.replace(": ", ":")


async def test_one_bad_schema_among_the_tools_leaves_the_others_enforced(client, real):
    real.script = says('<tool_call>\n{"name": "good", "arguments": {"x": 2}}\n</tool_call>')
    impossible = {"type": "string", "minLength": 9, "maxLength": 2}
    bad = {"type": "object", "properties": {"y": impossible}, "required": ["y"]}
    good = {"type": "object", "properties": {"x": {"type": "integer", "maximum": 3}}, "required": ["x"]}
    named = {"bad": bad, "good": good}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": parameters}}
        for name, parameters in named.items()
    ]
    body = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": "required"}
    response = await client.post(CHAT, json=body)
    assert response.status_code == 200
    relaxed = response.headers["x-reprise-relaxed"].split(", ")
    at = "tools[0].function.parameters.properties.y"
    assert relaxed == [f"{at}.minLength", f"{at}.maxLength"]
    assert '"maximum": 3' in real.compiled_grammars[-1].text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_is_cut_short_does_not_satisfy_its_schema(client, real, stream):
    real.script = says('<tool_call>\n{"name": "f", "arguments": {"x": 2', reason="length")
    tools = [{"type": "function", "function": {"name": "f", "parameters": OVERLAPPING}}]
    body = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": "required"}
    response = await client.post(CHAT, json=body | {"stream": stream})
    assert '"schema_valid":false' in response.text
