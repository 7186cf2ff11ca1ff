"""The grammar of a whole output, checked with llguidance: what it accepts and what it rejects."""

from dataclasses import replace

import pytest

from reprise.engine.interface.request import Grammar, Trigger
from reprise.engine.sampling.grammar import Grammars
from reprise.server.errors import BadRequestError
from reprise.server.generation.grammars import chat_grammar, optional_calls
from reprise.server.requests.chat import ChatRequest
from tests.engine.text.test_tokenizer import make_thinker

CITY = {"$ref": "#/$defs/city"}
PARAMETERS = {
    "type": "object",
    "properties": {"city": CITY},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Rome", "Paris"]}},
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
NOW = {"type": "function", "function": {"name": "now"}}
OPEN = {"type": "function", "function": {"name": "any", "parameters": {"type": "object"}}}
LARK = {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "a"'}}
PATCH = {"type": "custom", "custom": {"name": "patch", "format": LARK}}
STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
NUMBER = Grammar("json_schema", '{"type": "integer"}')


def call(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


ROME = call("weather", '{"city": "Rome"}')
OSLO = call("weather", '{"city": "Oslo"}')
CLOCK = call("now", "{}")
THOUGHT = "<think>\nhm ż 😀\n</think>\n\n"
WEATHER_NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def thinker():
    return make_thinker()


@pytest.fixture(scope="module")
def grammars(thinker):
    return Grammars(thinker)


def ask(tools=(WEATHER, NOW), **fields):
    return ChatRequest.model_validate(
        {"messages": [{"role": "user", "content": "x"}], "tools": list(tools), **fields}
    )


ONE = {"parallel_tool_calls": False}
ANSWERS = [
    # (request, grammar of the content, output, whether the grammar accepts it)
    (ask(tool_choice="required"), None, ROME, True),
    (ask(tool_choice="required"), None, CLOCK, True),
    (ask(tool_choice="required"), None, THOUGHT + ROME, True),
    (ask(tool_choice="required"), None, f"{ROME}\n{CLOCK}{ROME}", True),
    (ask(tool_choice="required"), None, OSLO, False),
    (ask(tool_choice="required"), None, "hello", False),
    (ask(tool_choice="required"), None, f"Sure. {ROME}", False),
    (ask(tool_choice="required"), None, "", False),
    (ask(tool_choice="required"), None, call("other", "{}"), False),
    (ask(tool_choice="required"), None, call("now", '{"a": 1}'), False),
    (ask(tool_choice="required", **ONE), None, ROME, True),
    (ask(tool_choice="required", **ONE), None, f"{ROME}\n{CLOCK}", False),
    (ask(tool_choice="required"), NUMBER, ROME, True),
    (ask(tool_choice="required"), NUMBER, "12", False),
    (ask(tool_choice=WEATHER_NAMED), None, ROME, True),
    (ask(tool_choice=WEATHER_NAMED), None, CLOCK, False),
    (ask([STRICT, NOW]), None, "hello ż 😀", True),
    (ask([STRICT, NOW]), None, f"{THOUGHT}Sure. {ROME}{CLOCK} So.", True),
    (ask([STRICT, NOW]), None, f"Sure. {OSLO}", False),
    (ask([STRICT, NOW, OPEN]), None, call("now", '{"a": 1}'), False),
    (ask([STRICT, NOW, OPEN]), None, call("any", '{"a": 1}'), True),
    (ask([PATCH, WEATHER]), None, ROME, True),
    (ask([PATCH, WEATHER]), None, OSLO, False),
    (ask([STRICT, NOW], **ONE), None, f"Sure. {ROME}", True),
    (ask([STRICT, NOW], **ONE), None, f"Sure. {ROME} Now", False),
    (ask(), NUMBER, "12", True),
    (ask(), NUMBER, THOUGHT + "12", True),
    (ask(), NUMBER, ROME, True),
    (ask(), NUMBER, OSLO, False),
    (ask(), NUMBER, "hello", False),
    (ask([STRICT]), NUMBER, OSLO, False),
    (ask([]), NUMBER, THOUGHT + "12", True),
    (ask([]), NUMBER, "12", True),
    (ask([]), NUMBER, THOUGHT + "x", False),
    (ask([]), Grammar("regex", "a/b\\/[c\n]+"), THOUGHT + "a/b/c\n", True),
    (ask([]), Grammar("regex", "a/b\\/[c\n]+"), "a/bb", False),
    (ask([]), Grammar("lark", 'start: "a" rest\nrest: "b"+\n'), THOUGHT + "abb", True),
    (ask([]), Grammar("lark", 'start: "a" rest\nrest: "b"+\n'), "ba", False),
]


@pytest.mark.parametrize(("body", "content", "answer", "passes"), ANSWERS)
def test_the_grammar_accepts_only_the_requested_output(thinker, grammars, body, content, answer, passes):
    grammar = chat_grammar(body, thinker.markers, False, content)
    assert _passes(thinker, grammars, grammar, answer) == passes


@pytest.mark.parametrize(
    ("answer", "passes"),
    [("hm</think>" + ROME, True), ("</think>\n" + ROME, True), (ROME, False), ("hm</think>hello", False)],
)
def test_if_the_prompt_opened_the_reasoning_the_output_must_close_it(thinker, grammars, answer, passes):
    grammar = chat_grammar(ask(tool_choice="required"), thinker.markers, True)
    assert _passes(thinker, grammars, grammar, answer) == passes


def test_unconstrained_output_has_no_grammar(thinker):
    assert chat_grammar(ask(), thinker.markers, False) is None
    assert chat_grammar(ask([]), thinker.markers, True) is None
    assert chat_grammar(ask([STRICT], tool_choice="none"), thinker.markers, False) is None


def test_the_generic_format_ends_with_its_first_call(thinker, grammars):
    markers = replace(thinker.markers, is_generic=True)
    grammar = chat_grammar(ask(tool_choice="required"), markers, False)
    assert _passes(thinker, grammars, grammar, ROME)
    assert not _passes(thinker, grammars, grammar, f"{ROME}\n{CLOCK}")


def test_a_marker_of_several_tokens_begins_a_call_as_text(thinker, grammars):
    start = type(thinker.markers.call_start)("<call>", tuple(thinker.encode("<call>")))
    markers = type(thinker.markers)(call_start=start, call_end=None, call_format="json_tools")
    grammar = chat_grammar(ask([STRICT]), markers, False)
    for answer, passes in (("<cal", True), (ROME, True), (f"Sure. {ROME}", True), (OSLO, False)):
        answer = answer.replace("<tool_call>", "<call>").removesuffix("</tool_call>")
        assert _passes(thinker, grammars, grammar, answer) == passes


def test_a_format_without_a_grammar_is_refused_where_one_is_needed(thinker):
    markers = replace(thinker.markers, call_format="unheard_of")
    for fields, param in (({"tool_choice": "required"}, "tool_choice"), ({}, "tools")):
        with pytest.raises(BadRequestError, match="unheard_of") as refused:
            chat_grammar(ask([STRICT], **fields), markers, False)
        assert refused.value.param == param


def _passes(thinker, grammars, grammar, answer):
    matcher = grammars.matcher(grammar)
    tokens = thinker.encode(answer)
    if matcher.count_allowed(tokens) < len(tokens):
        return False
    matcher.commit(tokens)
    return bool(matcher.masks()[0][sorted(thinker.eos_ids)[0]])


def coder_call(name, *arguments):
    shown = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments)
    return f"<tool_call>\n<function={name}>\n{shown}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("call_format", "answer", "passes"),
    [
        ("json_tools", ROME, True),
        ("json_tools", CLOCK, True),
        ("json_tools", OSLO, False),
        ("json_tools", call("nope", "{}"), False),
        ("json_tools", call("any", '{"a": [1]}'), True),
        ("qwen3_coder", coder_call("weather", ("city", "Rome")), True),
        ("qwen3_coder", coder_call("weather", ("town", "Rome")), False),
        ("qwen3_coder", coder_call("nope", ("city", "Rome")), False),
        ("qwen3_coder", coder_call("now"), True),
        ("qwen3_coder", coder_call("now", ("a", "1")), False),
        ("qwen3_coder", coder_call("any", ("a", "1")), True),
    ],
)
def test_an_optional_call_names_a_tool_and_follows_its_schema(thinker, grammars, call_format, answer, passes):
    markers = replace(thinker.markers, call_format=call_format)
    grammar = optional_calls(ask([WEATHER, NOW, OPEN]), markers)
    assert grammar.trigger == Trigger(markers.call_start.tokens)
    assert _passes(thinker, grammars, replace(grammar, trigger=None), answer) is passes


def test_no_call_is_guarded_where_none_may_come(thinker):
    assert optional_calls(ask(tool_choice="none"), thinker.markers) is None
    assert optional_calls(ask([]), thinker.markers) is None
