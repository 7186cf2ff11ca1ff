"""Structured output from the real server and the bundled model, which does not know these schemas."""

import json
import re
import threading
from enum import Enum
from typing import Annotated, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from tests.server.openai_shapes import assert_error, valid_chat

ASK = [{"role": "user", "content": "The lantern is red, has size 12 and costs 7.50. Tell me about it."}]
SCHEMA = "response_format.json_schema.schema"

SCHEMAS = {
    "object": {
        "type": "object",
        "properties": {
            "color": {"type": "string", "maxLength": 20},
            "size": {"type": "integer", "maximum": 99},
        },
        "required": ["color", "size"],
        "additionalProperties": False,
    },
    "optional members": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}, "c": {"enum": [1, "two", None]}},
        "additionalProperties": False,
    },
    "bounds": {
        "type": "array",
        "items": {"type": "number", "minimum": -1, "exclusiveMaximum": 2.5, "multipleOf": 0.25},
        "minItems": 2,
        "maxItems": 4,
    },
    "integers in steps": {"type": "integer", "minimum": 10, "maximum": 90, "multipleOf": 5},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "formats": {
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "id": {"type": "string", "format": "uuid"},
        },
        "required": ["day", "id"],
        "additionalProperties": False,
    },
    "lengths": {"type": "array", "items": {"type": "string", "minLength": 3, "maxLength": 5}, "maxItems": 3},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, {"const": "x"}],
        "items": False,
        "minItems": 2,
    },
    "alternatives": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"k": {"const": "a"}},
                "required": ["k"],
                "additionalProperties": False,
            },
            {"type": "integer", "minimum": 0, "maximum": 9},
        ]
    },
    "told apart": {
        "oneOf": [
            {
                "type": "object",
                "properties": {
                    "kind": {"const": kind},
                    "n": {"type": "integer", "minimum": -9, "maximum": 99},
                },
                "required": ["kind", "n"],
                "additionalProperties": False,
            }
            for kind in ("lamp", "lantern")
        ]
    },
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
            {"properties": {"a": {"maximum": 5}, "b": {"type": "boolean"}}, "required": ["b"]},
            {"maxProperties": 2},
        ]
    },
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "v": {"type": "integer", "minimum": 0, "maximum": 9},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["v", "next"],
                "additionalProperties": False,
            }
        },
    },
    "map": {
        "type": "object",
        "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 99},
        "minProperties": 1,
        "maxProperties": 2,
    },
    "names by pattern": {
        "type": "object",
        "patternProperties": {"^n_[a-z]{1,3}$": {"type": "boolean"}},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 2,
    },
    "letters of all kinds": {"enum": ['say "hi"', "back\\slash", "ü✓🙂", "line\nbreak", "\u0001"]},
    "annotated": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.invalid/lantern",
        "title": "Lantern",
        "description": "It shines.",
        "type": "object",
        "properties": {
            "on": {"type": "boolean", "description": "Does it?", "default": False, "examples": [True]}
        },
        "required": ["on"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def client(server_url):
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as made:
        yield made


def as_format(schema, **fields):
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, **fields}}


def ask(client, **fields):
    answer = client.chat.completions.create(model="demo", messages=ASK, max_tokens=150, **fields)
    valid_chat(answer.model_dump(exclude_unset=True))
    return answer.choices[0]


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 1, "seed": 1}], ids=["0", "1"])
@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_answers_keep_to_their_schema(client, schema, settings):
    choice = ask(client, response_format=as_format(schema), **settings)
    if choice.finish_reason == "length":
        assert schema is SCHEMAS["tree"], choice.message.content
        return
    value = json.loads(choice.message.content)
    jsonschema.validate(value, schema, format_checker=jsonschema.FormatChecker())


def test_a_stream_says_what_a_whole_answer_says_and_drafts_change_nothing(client):
    fields = {"response_format": as_format(SCHEMAS["object"]), "temperature": 1, "seed": 5}
    whole = ask(client, **fields).message.content
    assert ask(client, **fields, extra_body={"draft": {"type": "none"}}).message.content == whole
    stream = client.chat.completions.create(model="demo", messages=ASK, max_tokens=150, stream=True, **fields)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole


def test_any_object_is_an_object(client):
    for seed in range(3):
        choice = ask(client, response_format={"type": "json_object"}, seed=seed, temperature=0.7)
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)
        else:
            assert choice.message.content.startswith("{")


def test_json_is_spaced_as_it_is_written_by_hand(client):
    choice = ask(client, response_format=as_format(SCHEMAS["object"]), temperature=0)
    assert choice.message.content == json.dumps(json.loads(choice.message.content), ensure_ascii=False)


def test_expressions_choices_and_grammars_are_kept_to(client):
    for seed in range(3):
        matched = ask(client, seed=seed, extra_body={"guided_regex": "(red|green) [0-9]{2}/[a-z]{1,8}"})
        assert re.fullmatch("(red|green) [0-9]{2}/[a-z]{1,8}", matched.message.content)
        choices = ["a/b", "(1|2)", 'say "hi"\n', "✓🙂"]
        assert ask(client, seed=seed, extra_body={"guided_choice": choices}).message.content in choices
        lark = (
            'start: pair ("; " pair){1,2}\npair: NAME "=" %json {"type": "integer", "maximum": 9}\n'
            "NAME: /[a-z]{1,4}/"
        )
        said = ask(client, seed=seed, extra_body={"guided_grammar": lark}).message.content
        assert re.fullmatch(r"[a-z]{1,4}=-?\d+(; [a-z]{1,4}=-?\d+){1,2}", said)
        assert ask(client, seed=seed, extra_body={"guided_json": '{"const": 5}'}).message.content == "5"


def test_plain_completions_have_forms_too(client):
    answer = client.completions.create(
        model="demo", prompt="The lantern is", extra_body={"guided_choice": [" red", " green"]}, logprobs=2
    )
    assert answer.choices[0].text in (" red", " green")
    assert "".join(answer.choices[0].logprobs.tokens) == answer.choices[0].text


class Color(Enum):
    """Colors there are."""

    RED = "red"
    GREEN = "green"


class Part(BaseModel):
    """Part of a lantern."""

    name: str = Field(max_length=12)
    weight: Annotated[int, Field(ge=0, le=99)] | None


class Lantern(BaseModel):
    """What the SDK makes a schema of."""

    color: Color
    size: int = Field(ge=0, le=99)
    mood: Literal["bright", "dim"]
    parts: list[Part] = Field(max_length=2)


def test_the_sdk_parses_answers_into_models(client):
    for settings in ({"temperature": 0}, {"temperature": 1, "seed": 3}):
        parsed = client.chat.completions.parse(
            model="demo", messages=ASK, max_tokens=300, response_format=Lantern, **settings
        )
        assert isinstance(parsed.choices[0].message.parsed, Lantern)


def test_the_sdks_stream_helper_parses_too(client):
    with client.chat.completions.stream(
        model="demo", messages=ASK, max_tokens=300, temperature=0, response_format=Lantern
    ) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Lantern)


def test_log_probabilities_come_with_forms_and_add_up_to_the_text(client):
    choice = ask(
        client, response_format=as_format(SCHEMAS["object"]), temperature=0, logprobs=True, top_logprobs=3
    )
    entries = choice.logprobs.content
    assert bytes(byte for entry in entries for byte in entry.bytes).decode() == choice.message.content
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 3 for entry in entries)


def test_echo_tells_the_prompts_tokens(client):
    answer = client.completions.create(
        model="demo",
        prompt="The lantern is red. Ünïcödé ✓",
        echo=True,
        logprobs=1,
        max_tokens=4,
        temperature=0,
    )
    choice = answer.choices[0]
    told = choice.logprobs
    assert choice.text.startswith("The lantern is red. Ünïcödé ✓")
    assert told.token_logprobs[0] is None
    assert told.top_logprobs[0] is None
    assert all(logprob <= 0 for logprob in told.token_logprobs[1:])
    starts = [*told.text_offset, len(choice.text)]
    for token, start, end in zip(told.tokens, starts, starts[1:], strict=False):
        assert token == choice.text[start:end] or token.startswith("bytes:") or start == end


BAD = {
    "not": ({"not": {"type": "string"}}, SCHEMA, "'not'"),
    "if": ({"type": "object", "if": {}, "then": {}}, SCHEMA, "'if', 'then'"),
    "elsewhere": ({"$ref": "https://example.invalid/x.json"}, SCHEMA, "nothing is fetched"),
    "nowhere": ({"$ref": "#/$defs/x"}, SCHEMA, "does not exist"),
    "overlapping": ({"oneOf": [{"type": "object"}, {"required": ["a"]}]}, SCHEMA, "'oneOf'"),
    "lookaround": ({"type": "string", "pattern": "(?=a)b"}, SCHEMA, "look-around"),
    "no value": ({"type": "integer", "minimum": 5, "maximum": 1}, SCHEMA, "minimum (5) is greater"),
    "no type": ({"type": "objekt"}, SCHEMA, "objekt"),
    "no end": ({"$ref": "#"}, SCHEMA, "no end"),
    "long steps": ({"multipleOf": 99_999_989}, SCHEMA, "cannot be enforced"),
    "many patterns": (
        {"allOf": [{"pattern": f"a{{{i}}}.*b"} for i in range(100)]},
        SCHEMA,
        "cannot be enforced",
    ),
    "products": (
        {
            "allOf": [
                {"anyOf": [{"required": [f"{name}{i}"], "type": "object"} for name in "ab"]}
                for i in range(14)
            ]
        },
        SCHEMA,
        "cannot be enforced",
    ),
    "10 MB": ({"enum": ["x" * 100] * 60_000}, SCHEMA, "65536"),
}
BAD_FIELDS = {
    "exploding": ({"guided_regex": "(a{1000}){1000}"}, "guided_regex", "cannot be enforced"),
    "half": ({"guided_regex": "(a"}, "guided_regex", "unclosed group"),
    "forced for ever": ({"guided_grammar": 'start: "a"{100000}'}, "guided_grammar", "1000 repetitions"),
    "rules for ever": ({"guided_grammar": "start: start"}, "guided_grammar", "cannot be enforced"),
    "doubling": (
        {
            "guided_grammar": "start: a0\n"
            + "".join(f"a{i}: a{i + 1} a{i + 1}\n" for i in range(40))
            + 'a40: "a"'
        },
        "guided_grammar",
        "cannot be enforced",
    ),
    "long chain": (
        {"guided_grammar": "start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(3000)) + 'a3000: "a"'},
        "guided_grammar",
        "too long",
    ),
    "unknown rule": ({"guided_grammar": "start: nothing"}, "guided_grammar", "nothing"),
}


def test_what_cannot_be_enforced_is_a_400_while_others_stream(client, server_url):
    """Send grammars that are refused because compiling them would take many seconds, or for ever."""
    cases = [
        *(
            ({"response_format": as_format(schema, strict=True)}, param, told)
            for schema, param, told in BAD.values()
        ),
        *BAD_FIELDS.values(),
    ]
    stop = threading.Event()
    num_chunks = 0

    def stream() -> None:
        nonlocal num_chunks
        while not stop.is_set():
            answer = client.completions.create(
                model="demo", prompt="The lantern", max_tokens=200, stream=True, seed=1
            )
            for _ in answer:
                num_chunks += 1

    thread = threading.Thread(target=stream)
    thread.start()
    try:
        with openai.DefaultHttpxClient(base_url=server_url, timeout=60) as http:
            for fields, param, told in cases:
                response = http.post("/v1/chat/completions", json={"messages": ASK, **fields})
                assert response.status_code == 400, (fields, response.text)
                error = response.json()["error"]
                assert told in assert_error(response.json(), param, error["code"])
    finally:
        stop.set()
        thread.join(240)
    assert num_chunks > 5
