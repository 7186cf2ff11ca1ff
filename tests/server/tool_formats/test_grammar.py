"""Grammars of tool calls in every format, checked with llguidance: what they accept and what they reject."""

import json

import pytest

from engine.model.markers import HARMONY, Marker, Markers
from engine.sampling.grammar import Grammars
from server.errors import BadRequestError
from server.generation.chat_grammar import chat_grammar
from server.requests.chat import ChatRequest
from tests.engine.model.test_tokenizer import make_thinker

SPECIAL = [
    *("<tool_call>", "</tool_call>", "<minimax:tool_call>", "</minimax:tool_call>", "[TOOL_CALLS]", "[ARGS]"),
    *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
    *("<|tool_call_end|>", "<|tool_calls_section_end|>"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    *(
        "<｜tool▁calls▁end｜>",
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|constrain|>",
        "<|end|>",
        "<|call|>",
    ),
    "<|return|>",
]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Paris"]},
        "note": {"type": "string"},
        "days": {"$ref": "#/$defs/n"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"n": {"type": "integer", "maximum": 9}},
}


def ask(**fields):
    function = {"name": "get_weather", "parameters": SCHEMA, **fields.pop("function", {})}
    tools = [{"type": "function", "function": function}, {"type": "function", "function": {"name": "now"}}]
    return ChatRequest.model_validate(
        {"messages": [{"role": "user", "content": "x"}], "tools": tools, **fields}
    )


@pytest.fixture(scope="module")
def model():
    tokenizer = make_thinker(special=SPECIAL, num_more=len(SPECIAL))
    return tokenizer, Grammars(tokenizer)


def accepts(model, grammar, answer):
    tokenizer, grammars = model
    matcher = grammars.matcher(grammar)
    tokens = tokenizer.encode(answer)
    if matcher.count_allowed(tokens) < len(tokens):
        return False
    matcher.commit(tokens)
    return bool(matcher.masks()[0][sorted(tokenizer.eos_ids)[0]])


def tagged(key, middle, end, has_breaks=False):
    edge = "\n" if has_breaks else ""

    def write(values):
        return "".join(f"{key}{name}{middle}{edge}{value}{edge}{end}\n" for name, value in values.items())

    return write


QWEN = tagged("<parameter=", ">", "</parameter>", True)
MINIMAX = tagged('<parameter name="', '">', "</parameter>")
GLM = tagged("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>")


def dumps(values):
    return json.dumps(values, ensure_ascii=False)


# (start marker, end marker, how a call is written)
FORMATS = {
    "json_tools": (
        "<tool_call>",
        "</tool_call>",
        lambda name, values: f'<tool_call>\n{{"name": "{name}", "arguments": {dumps(values)}}}\n</tool_call>',
    ),
    "qwen3_coder": (
        "<tool_call>",
        "</tool_call>",
        lambda name, values: f"<tool_call>\n<function={name}>\n{QWEN(values)}</function>\n</tool_call>",
    ),
    "glm47": (
        "<tool_call>",
        "</tool_call>",
        lambda name, values: f"<tool_call>{name}\n{GLM(values)}</tool_call>",
    ),
    "minimax_m2": (
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        lambda name, values: (
            f'<minimax:tool_call>\n<invoke name="{name}">\n{MINIMAX(values)}</invoke>\n</minimax:tool_call>'
        ),
    ),
    "mistral": ("[TOOL_CALLS]", "", lambda name, values: f"[TOOL_CALLS]{name}[ARGS]{dumps(values)}"),
    "kimi_k2": (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        lambda name, values: (
            f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0"
            f"<|tool_call_argument_begin|>{dumps(values)}<|tool_call_end|><|tool_calls_section_end|>"
        ),
    ),
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        lambda name, values: (
            f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n"
            f"{dumps(values)}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
    ),
    "deepseek_v31": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        lambda name, values: (
            f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>"
            f"{dumps(values)}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
    ),
    "llama3": (
        '{"name": ',
        "",
        lambda name, values: f'{{"name": "{name}", "parameters": {dumps(values)}}}',
    ),
}


def markers_of(name, tokenizer):
    start, end, _ = FORMATS[name]

    def mark(text):
        return Marker(text, tuple(tokenizer.encode(text)))

    inner = tuple(mark(text) for text in SPECIAL if "tool" not in text or "call▁" in text or "_call_" in text)
    inner += (mark("<｜tool▁sep｜>"),)
    return Markers(call_start=mark(start), call_end=mark(end) if end else None, inner=inner, call_format=name)


ROME = {"city": "Rome", "days": 2}
GOOD = [ROME, {"city": "Paris", "note": 'a "quoted" <b> ż', "days": 9}]
BAD = [
    {"city": "Oslo", "days": 2},
    {"city": "Rome"},
    {"city": "Rome", "days": 10},
    {"city": "Rome", "days": "x"},
]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
        {"function": {"strict": True}},
    ],
    ids=["required", "named", "strict"],
)
def test_calls_follow_their_schemas_in_every_format(model, name, fields):
    write = FORMATS[name][2]
    grammar = chat_grammar(ask(**fields), markers_of(name, model[0]), False)
    assert all(accepts(model, grammar, write("get_weather", values)) for values in GOOD)
    assert not any(accepts(model, grammar, write("get_weather", values)) for values in BAD)
    assert not accepts(model, grammar, write("other", {}))
    is_named = isinstance(fields.get("tool_choice"), dict)
    assert accepts(model, grammar, write("now", {})) == (not is_named)
    is_free = "function" in fields
    assert accepts(model, grammar, "Hello {there}") == is_free
    assert accepts(model, grammar, "Look: " + write("get_weather", ROME)) == is_free
    assert not accepts(model, grammar, "Look: " + write("get_weather", BAD[0]))


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"mistral", "llama3"}))
def test_several_calls_are_allowed_unless_the_request_forbids_them(model, name):
    write, markers = FORMATS[name][2], markers_of(name, model[0])
    two = write("get_weather", ROME) + write("now", {})
    if name in ("minimax_m2", "kimi_k2", "deepseek_v3", "deepseek_v31"):
        start, end, _ = FORMATS[name]
        separator = "\n" if name == "deepseek_v3" else ""
        first, second = write("get_weather", ROME), write("now", {}).removeprefix(start)
        two = first.removesuffix(end) + separator + second.removeprefix("\n")
    allowed = chat_grammar(ask(tool_choice="required"), markers, False)
    assert accepts(model, allowed, two)
    forbidden = chat_grammar(ask(tool_choice="required", parallel_tool_calls=False), markers, False)
    assert not accepts(model, forbidden, two)


STRINGS = [
    ({"type": "string", "pattern": "^[a-z/]+$"}, "ab/c", "ab1"),
    ({"type": "string", "pattern": "b"}, "abc", "acd"),
    ({"type": "string", "minLength": 2, "maxLength": 3}, "abc", "abcd"),
    ({"type": "string", "const": "<x>"}, "<x>", "x"),
    ({"type": ["string", "null"]}, "null", None),
    ({"type": "array", "items": {"type": "string"}}, '["a"]', "a"),
]


@pytest.mark.parametrize(("schema", "good", "bad"), STRINGS)
def test_a_tagged_value_follows_its_schema(model, schema, good, bad):
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    body = ask(function={"strict": True, "parameters": parameters})
    grammar = chat_grammar(body, markers_of("qwen3_coder", model[0]), False)
    write = FORMATS["qwen3_coder"][2]
    assert accepts(model, grammar, write("get_weather", {"x": good}))
    assert bad is None or not accepts(model, grammar, write("get_weather", {"x": bad}))


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {"x": {"type": "string", "format": "date"}}},
        {"type": "object", "properties": {"x": {"anyOf": [{"type": "string"}, {"minimum": 1}]}}},
        {"type": "object", "minProperties": 1},
    ],
)
def test_what_a_tagged_format_cannot_enforce_is_refused_only_if_strict(model, parameters):
    markers = markers_of("qwen3_coder", model[0])
    with pytest.raises(BadRequestError) as refused:
        chat_grammar(ask(function={"strict": True, "parameters": parameters}), markers, False)
    assert refused.value.param == "tools[0].function.parameters"
    body = ask(function={"parameters": parameters}, tool_choice="required")
    grammar = chat_grammar(body, markers, False)
    assert accepts(model, grammar, FORMATS["qwen3_coder"][2]("now", {}))


def harmony(tokenizer):
    def mark(text):
        return Marker(text, tuple(tokenizer.encode(text)))

    inner = tuple(mark(text) for text in SPECIAL[-7:])
    start = mark("<|channel|>analysis<|message|>")
    return Markers(start, mark("<|end|>"), mark("<|call|>"), inner=inner, call_format=HARMONY)


ANALYSIS = "<|channel|>analysis<|message|>hm ż<|end|><|start|>assistant"
CALL = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
NUMBER = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("fields", "answer", "passes"),
    [
        ({"tool_choice": "required"}, CALL + '{"city": "Rome", "days": 2}', True),
        ({"tool_choice": "required"}, ANALYSIS + CALL + '{"city": "Rome", "days": 2}', True),
        ({"tool_choice": "required"}, CALL + '{"city": "Oslo", "days": 2}', False),
        ({"tool_choice": "required"}, ANALYSIS + "<|channel|>final<|message|>Hello", False),
        ({"function": {"strict": True}}, ANALYSIS + "<|channel|>final<|message|>Hello", True),
        ({"function": {"strict": True}}, CALL + '{"city": "Oslo", "days": 2}', False),
        ({"response_format": NUMBER}, ANALYSIS + "<|channel|>final<|message|>12", True),
        ({"response_format": NUMBER}, ANALYSIS + "<|channel|>final<|message|>x", False),
        ({"response_format": NUMBER, "tools": []}, "<|channel|>final<|message|>12", True),
    ],
)
def test_gpt_oss_keeps_to_its_channels(model, fields, answer, passes):
    body = ask(**fields)
    content = body.requested_grammar
    grammar = chat_grammar(body, harmony(model[0]), False, content and content[0])
    assert accepts(model, grammar, answer) == passes


LARK = 'start: "*** Begin" LF /(.+)/ LF\n%import common.LF\n'
TEXT = '*** Begin\na "b" \\ ż\n'


def ask_custom(syntax, definition, **fields):
    grammar = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    edit = {"type": "custom", "custom": {"name": "edit", "format": grammar}}
    return ask(**{"tools": [edit, {"type": "function", "function": {"name": "now"}}]} | fields)


@pytest.mark.parametrize("name", FORMATS)
def test_a_free_form_input_follows_its_grammar_in_every_format(model, name):
    write = FORMATS[name][2]
    markers = markers_of(name, model[0])
    grammar = chat_grammar(ask_custom("lark", LARK), markers, False)
    assert accepts(model, grammar, write("edit", {"input": TEXT}))
    assert accepts(model, grammar, write("now", {}))
    assert not accepts(model, grammar, write("edit", {"input": TEXT.replace("Begin", "Start")}))
    assert not accepts(model, grammar, write("edit", {"input": "*** Begin\n"}))
    choice = {"type": "custom", "custom": {"name": "edit"}}
    named = chat_grammar(ask_custom("regex", "[a-c]+", tool_choice=choice), markers, False)
    assert accepts(model, named, write("edit", {"input": "abc"}))
    assert not accepts(model, named, write("edit", {"input": "abd"}))
    assert not accepts(model, named, write("now", {}))


def test_gpt_oss_s_free_form_input_follows_its_grammar(model):
    grammar = chat_grammar(ask_custom("lark", LARK), harmony(model[0]), False)
    head = CALL.replace("get_weather", "edit")
    assert accepts(model, grammar, head + dumps({"input": TEXT}))
    assert not accepts(model, grammar, head + dumps({"input": "x"}))
