"""Grammars of tool calls in every format, checked with llguidance: what they accept and what they reject."""

import json
from functools import partial
from unittest.mock import ANY

import pytest

from reprise.engine.sampling.grammar import Grammars
from reprise.engine.sampling.matchers import make_matcher
from reprise.engine.text.markers import HARMONY, Marker, Markers
from reprise.server.errors import BadRequestError
from reprise.server.generation.grammars import chat_grammar, optional_calls
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.tools import ToolChoice
from tests.engine.text.test_tokenizer import make_thinker

SPECIAL = [
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
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
    *("<|open|>", "<|close|>", "<|sep|>", "<|eom|>"),
]
NOT_INNER = [
    *('<|"|>', "<|tool_call>", "<tool_call|>", "<|tool_call_start|>", "<|tool_call_end|>"),
    *("<start_function_call>", "<end_function_call>", "｜DSML｜"),
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
    tokenizer = make_thinker(special=[*SPECIAL, *NOT_INNER], num_more=len(SPECIAL) + len(NOT_INNER))
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
LONGCAT = tagged("<longcat_arg_key>", "</longcat_arg_key>\n<longcat_arg_value>", "</longcat_arg_value>")


def dumps(values):
    return json.dumps(values, ensure_ascii=False)


def dsml(name, values):
    def write(key, value):
        is_text = isinstance(value, str) and key != "days"
        shown = value if isinstance(value, str) else dumps(value)
        return f'<｜DSML｜parameter name="{key}" string="{dumps(is_text)}">{shown}</｜DSML｜parameter>\n'

    inner = "".join(write(key, value) for key, value in values.items())
    call = f'<｜DSML｜invoke name="{name}">\n{inner}</｜DSML｜invoke>\n'
    return f"<｜DSML｜function_calls>\n{call}</｜DSML｜function_calls>"


def gemma(quote):
    def shown(value):
        if isinstance(value, dict):
            return "{" + ",".join(f"{key}:{shown(value[key])}" for key in sorted(value)) + "}"
        if isinstance(value, list):
            return f"[{','.join(map(shown, value))}]"
        return f"{quote}{value}{quote}" if isinstance(value, str) else dumps(value)

    return lambda name, values: f"call:{name}{shown(values)}"


GEMMA4, FUNCTION_GEMMA = gemma('<|"|>'), gemma("<escape>")


def python(name, values):
    constants = {"true": "True", "false": "False", "null": "None"}
    shown = {key: constants.get(dumps(value), dumps(value)) for key, value in values.items()}
    return f"[{name}({', '.join(f'{key}={value}' for key, value in shown.items())})]"


def cdata(name, values):
    def shown(value):
        text = value if isinstance(value, str) else dumps(value)
        return f"<![CDATA[{text}]]>" if "<" in text or "\n" in text else text

    inner = "".join(f'<param name="{key}">{shown(value)}</param>' for key, value in values.items())
    return f'<function name="{name}">{inner}</function>'


def xtml(name, values):
    def tag(head, inner):
        return f"<|open|>{head}<|sep|>{inner}<|close|>{head.split()[0]}<|sep|>"

    def argument(key, value):
        kind = "number" if key == "days" else "string"
        text = value if isinstance(value, str) else dumps(value)
        return tag(f'argument key="{key}" type="{kind}"', text)

    inner = "".join(argument(key, value) for key, value in values.items())
    return tag("tools", tag(f'call tool="{name}" index="1"', inner))


def atem(name, values):
    inner = "".join(
        f'<atem:parameter name="{key}">{value}</atem:parameter>\n' for key, value in values.items()
    )
    invoke = f'<atem:invoke name="{name}">\n{inner}</atem:invoke>\n'
    return f"<atem:function_calls>\n{invoke}</atem:function_calls>"


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
    "laguna": (
        "<tool_call>",
        "</tool_call>",
        lambda name, values: f"<tool_call>{name}{GLM(values)}</tool_call>",
    ),
    "longcat": (
        "<longcat_tool_call>",
        "</longcat_tool_call>",
        lambda name, values: f"<longcat_tool_call>{name}\n{LONGCAT(values)}</longcat_tool_call>",
    ),
    "mistral": ("[TOOL_CALLS]", "", lambda name, values: f"[TOOL_CALLS]{name}[ARGS]{dumps(values)}"),
    "mistral_list": (
        "[TOOL_CALLS]",
        "",
        lambda name, values: f'[TOOL_CALLS] [{{"name": "{name}", "arguments": {dumps(values)}}}]',
    ),
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
    "deepseek_v32": ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", dsml),
    "gemma4": (
        "<|tool_call>",
        "<tool_call|>",
        lambda name, values: f"<|tool_call>{GEMMA4(name, values)}<tool_call|>",
    ),
    "function_gemma": (
        "<start_function_call>",
        "<end_function_call>",
        lambda name, values: f"<start_function_call>{FUNCTION_GEMMA(name, values)}<end_function_call>",
    ),
    "pythonic": (
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        lambda name, values: f"<|tool_call_start|>{python(name, values)}<|tool_call_end|>",
    ),
    "minicpm5": ("<function name=", "</function>", cdata),
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
    inner += (mark("<｜tool▁sep｜>"), mark('<|"|>'), mark("｜DSML｜"))
    if name == "mistral_list":
        name, inner = "mistral", ()
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


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"mistral", "mistral_list", "llama3"}))
def test_several_calls_are_allowed_unless_the_request_forbids_them(model, name):
    write, markers = FORMATS[name][2], markers_of(name, model[0])
    two = write("get_weather", ROME) + write("now", {})
    if name in ("minimax_m2", "kimi_k2", "deepseek_v3", "deepseek_v31", "deepseek_v32"):
        start, end, _ = FORMATS[name]
        separator = "\n" if name == "deepseek_v3" else ""
        first, second = write("get_weather", ROME), write("now", {}).removeprefix(start)
        two = first.removesuffix(end) + separator + second.removeprefix("\n")
    if name == "pythonic":
        two = two.replace("]<|tool_call_end|><|tool_call_start|>[", ", ")
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

    inner = tuple(mark(text) for text in SPECIAL[-11:-4])
    start = mark("<|channel|>analysis<|message|>")
    return Markers(start, mark("<|end|>"), mark("<|call|>"), inner=inner, call_format=HARMONY)


ANALYSIS = "<|channel|>analysis<|message|>hm ż<|end|><|start|>assistant"
CALL = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"


def kimi_k3(tokenizer):
    def mark(text):
        return Marker(text, tuple(tokenizer.encode(text)))

    think = [mark(f"<|{way}|>think<|sep|>") for way in ("open", "close")]
    tools = [mark(f"<|{way}|>tools<|sep|>") for way in ("open", "close")]
    names = ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>")
    inner = tuple(map(mark, ("<|open|>", "<|close|>", "<|sep|>")))
    return Markers(*think, *tools, tuple(map(mark, names)), inner, "kimi_k3")


def muse(tokenizer):
    def mark(text):
        return Marker(text, tuple(tokenizer.encode(text)))

    think = [mark("to=self<|message|>"), mark("<|eom|>")]
    tools = [mark("<atem:function_calls>"), mark("</atem:function_calls>")]
    said = (mark("to=user<|message|>"), mark("<|eom|>"))
    inner = tuple(map(mark, ("<|start|>", "<|message|>", "<|eom|>")))
    return Markers(*think, *tools, said, inner, "muse_spark")


BLOCK, MESSAGE_END = "<|close|>response<|sep|>", "<|close|>message<|sep|>"
K3_THOUGHT = "hm ż<|close|>think<|sep|><|open|>response<|sep|>"
NEXT = "<|eom|><|start|>assistant"
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


def allowed(model, grammar, answer, prompt=""):
    """Return how many tokens of an answer may be chosen one by one, and whether all may be."""
    tokenizer, grammars = model
    given = grammars.compile(grammar)
    one, whole = (make_matcher(grammars, given, tokenizer, tokenizer.encode(prompt)) for _ in range(2))
    tokens = tokenizer.encode(answer)
    drafted = []
    for token in tokens:
        (mask,) = one.masks()
        if mask is not None and not mask[token]:
            break
        one.commit([token])
        drafted.append(token)
    # A draft has the same masks, up to the end of its first call.
    draft = drafted[: whole.count_allowed(drafted)]
    masks = whole.masks(draft)
    other = make_matcher(grammars, given, tokenizer, tokenizer.encode(prompt))
    for token, mask in zip([*draft, None], masks, strict=True):
        (expected,) = other.masks()
        assert (mask is None) == (expected is None)
        assert mask is None or (mask == expected).all()
        if token is not None:
            other.commit([token])
    return len(drafted), len(drafted) == len(tokens)


OPTIONAL = {name: (partial(markers_of, name), FORMATS[name][2]) for name in FORMATS}
OPTIONAL |= {"kimi_k3": (kimi_k3, xtml), "muse_spark": (muse, atem)}
OPTIONAL["harmony"] = (
    harmony,
    lambda name, values: CALL.replace("get_weather", name) + dumps(values) + "<|end|>",
)


@pytest.mark.parametrize("name", sorted(OPTIONAL.keys() - {"llama3"}))
def test_a_call_that_may_be_made_is_of_a_known_tool_in_every_format(model, name):
    make_markers, write = OPTIONAL[name]
    grammar = optional_calls(ask(), make_markers(model[0]))
    free = 'Hello {there}, < and <tool and <|start|> {"name": "x"}. '
    free = free.replace("<|start|>", "") if name == "harmony" else free
    for values in GOOD:
        if name != "muse_spark" or values == ROME:
            assert allowed(model, grammar, free + write("get_weather", values)) == (ANY, True)
    if not name.startswith("mistral"):
        assert allowed(model, grammar, f"{free}{write('now', {})} And {write('get_weather', ROME)} so.")[1]
    for wrong in [write("other", {}), *(write("get_weather", values) for values in BAD)]:
        num, is_whole = allowed(model, grammar, free + wrong)
        assert num > len(model[0].encode(free))
        assert not is_whole


@pytest.mark.parametrize(
    ("answer", "passes"),
    [
        (ANALYSIS + "<|channel|>final<|message|>Hello", True),
        (" to=functions.now<|channel|>commentary json<|message|>{}", True),
        (" to=functions.now<|channel|>commentary <|constrain|>json<|message|>{}<|end|>", True),
        (" to=functions.nope<|channel|>commentary json<|message|>{}", False),
        (" to=functions.now-nope<|channel|>commentary json<|message|>{}", False),
        (" to=functions.now.nope<|channel|>commentary json<|message|>{}", False),
        (" to=functions.now/nope<|channel|>commentary json<|message|>{}", False),
        (" to=functions.now json<|channel|>commentary<|message|>{}", True),
        (ANALYSIS + " to=functions.nope<|channel|>commentary json<|message|>{}", False),
        ("<|channel|>analysis to=functions.now<|message|>{}", True),
        ("<|channel|>analysis to=python<|message|>print(1)", True),
        (
            "<|channel|>commentary<|message|>Now.<|end|><|start|>assistant"
            + CALL
            + '{"city": "Rome", "days": 2}',
            True,
        ),
        ("<|channel|>commentary<|message|>Now.<|end|><|start|>assistant" + CALL + '{"city": "Rome"}', False),
        (CALL + '{"city": "Rome", "days": 2}<|end|><|start|>assistant<|channel|>final<|message|>So', True),
        (CALL + '{"city": "Rome", "days": 2} So', False),
    ],
)
def test_a_head_of_gpt_oss_names_a_known_function_if_any(model, answer, passes):
    grammar = optional_calls(ask(), harmony(model[0]))
    assert allowed(model, grammar, answer, "x<|end|><|start|>assistant")[1] is passes


def test_a_call_that_the_prompt_has_begun_is_held_too(model):
    grammar = optional_calls(ask(), markers_of("json_tools", model[0]))
    assert allowed(model, grammar, '{"name": "now", "arguments": {}}\n</tool_call>', "x<tool_call>\n")[1]
    assert not allowed(model, grammar, '{"name": "nope', "x<tool_call>\n")[1]
    assert allowed(model, grammar, '{"name": "nope', "x<tool_call>\nno</tool_call>\n")[1]


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


NESTED = {
    "type": "object",
    "properties": {
        "to": {
            "type": "array",
            "minItems": 1,
            "maxItems": 2,
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string", "pattern": "^[A-Z]"}, "age": {"type": "integer"}},
                "required": ["name"],
                "additionalProperties": False,
            },
        },
        "tree": {"$ref": "#/$defs/tree"},
        "mark": {"anyOf": [{"type": "boolean"}, {"type": "null"}, {"enum": ["x", 1]}]},
    },
    "required": ["to"],
    "additionalProperties": False,
    "$defs": {"tree": {"type": "object", "properties": {"of": {"$ref": "#/$defs/tree"}}}},
}
GOOD_NESTED = [
    {"to": [{"name": "Ann"}]},
    {"mark": None, "to": [{"age": 3, "name": "Ann"}, {"name": "Bo's"}], "tree": {"of": {"of": {}}}},
    {"mark": "x", "to": [{"name": "A"}]},
    {"mark": 1, "to": [{"name": "A"}], "tree": {}},
    {"mark": True, "to": [{"name": "A"}]},
]
BAD_NESTED = [
    {},
    {"to": []},
    {"to": [{"name": "A"}] * 3},
    {"to": [{"name": "ann"}]},
    {"to": [{"age": 3}]},
    {"to": [{"name": "A", "zip": 1}]},
    {"to": [{"name": "A"}], "tree": 5},
    {"mark": "y", "to": [{"name": "A"}]},
    {"to": [{"name": "A"}], "other": 1},
]


@pytest.mark.parametrize("name", ["gemma4", "function_gemma"])
def test_nested_literals_follow_their_schemas(model, name):
    write = FORMATS[name][2]
    body = ask(function={"strict": True, "parameters": NESTED}, tool_choice="required")
    grammar = chat_grammar(body, markers_of(name, model[0]), False)
    for values in GOOD_NESTED:
        assert accepts(model, grammar, write("get_weather", values)), values
    for values in BAD_NESTED:
        assert not accepts(model, grammar, write("get_weather", values)), values


@pytest.mark.parametrize("name", ["gemma4", "pythonic"])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "format": "date"},
        {"type": "array", "uniqueItems": True},
        {"type": "object", "minProperties": 1},
        {"minimum": 1},
    ],
)
def test_what_literals_cannot_enforce_is_refused_only_if_strict(model, name, schema):
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    markers = markers_of(name, model[0])
    with pytest.raises(BadRequestError) as refused:
        chat_grammar(ask(function={"strict": True, "parameters": parameters}), markers, False)
    assert refused.value.param == "tools[0].function.parameters"
    chat_grammar(ask(function={"parameters": parameters}, tool_choice="required"), markers, False)


@pytest.mark.parametrize("name", ["gemma4", "function_gemma", "pythonic"])
def test_any_arguments_are_literals(model, name):
    write = FORMATS[name][2]
    body = ask(tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])
    body = body.model_copy(update={"tool_choice": ToolChoice("required")})
    grammar = chat_grammar(body, markers_of(name, model[0]), False)
    assert accepts(model, grammar, write("f", {"a": "x", "b": [1, "y"]}))
    assert accepts(model, grammar, write("f", {}))
    assert not accepts(model, grammar, write("f", {"a": 1}).replace("1", "x"))


def k3_answer(said="", values=None, name="get_weather"):
    return said + BLOCK + (xtml(name, values) if values is not None else "") + MESSAGE_END


def muse_answer(said=None, values=None, name="get_weather"):
    call = "" if values is None else f" to={name}<|message|>{atem(name, values)}"
    return (NEXT if call and said else "").join(
        part for part in ("" if said is None else f" to=user<|message|>{said}", call) if part
    )


WHOLE_ANSWERS = [
    # (request, what is said, arguments of the call, whether the grammar accepts it)
    ({"tool_choice": "required"}, None, ROME, True),
    ({"tool_choice": "required"}, None, GOOD[1], True),
    *(({"tool_choice": "required"}, None, values, False) for values in BAD),
    ({"tool_choice": "required"}, "Hello", None, False),
    ({"function": {"strict": True}}, "Hello {there}", None, True),
    ({"function": {"strict": True}}, "Look:", ROME, True),
    ({"function": {"strict": True}}, "Look:", BAD[0], False),
    ({"function": {"strict": True}}, None, BAD[0], False),
    ({"response_format": NUMBER}, "12", None, True),
    ({"response_format": NUMBER}, "x", None, False),
    ({"response_format": NUMBER}, None, ROME, True),
    ({"response_format": NUMBER}, "12", ROME, False),
    ({"response_format": NUMBER, "tools": []}, "12", None, True),
]


@pytest.mark.parametrize(("fields", "said", "values", "passes"), WHOLE_ANSWERS)
@pytest.mark.parametrize("name", ["kimi_k3", "muse_spark"])
def test_formats_of_whole_answers_keep_content_and_calls_in_their_places(
    model, name, fields, said, values, passes
):
    body = ask(**fields)
    content = body.requested_grammar
    markers = kimi_k3(model[0]) if name == "kimi_k3" else muse(model[0])
    if name == "kimi_k3":
        answer = k3_answer(said or "", values)
        thought, opening = K3_THOUGHT, "<|open|>think<|sep|>"
    else:
        answer = muse_answer(said, values)
        thought, opening = f"hm ż{NEXT}", " to=self<|message|>"
    is_open = chat_grammar(body, markers, True, content and content[0])
    is_new = chat_grammar(body, markers, False, content and content[0])
    assert accepts(model, is_new, answer) == passes
    assert accepts(model, is_new, opening + thought + answer) == passes
    assert accepts(model, is_open, thought + answer) == passes


def test_a_section_of_kimi_k3_may_have_several_calls(model):
    both = xtml("get_weather", ROME).removesuffix("<|close|>tools<|sep|>")
    both += xtml("now", {}).removeprefix("<|open|>tools<|sep|>")
    for is_parallel in (True, False):
        body = ask(tool_choice="required", parallel_tool_calls=is_parallel)
        grammar = chat_grammar(body, kimi_k3(model[0]), False)
        assert accepts(model, grammar, BLOCK + both + MESSAGE_END) == is_parallel


def test_calls_of_muse_spark_are_messages_of_their_own(model):
    first, second = muse_answer(None, ROME), muse_answer(None, {}, "now")
    for is_parallel in (True, False):
        body = ask(tool_choice="required", parallel_tool_calls=is_parallel)
        grammar = chat_grammar(body, muse(model[0]), False)
        assert accepts(model, grammar, first + NEXT + second) == is_parallel
        assert not accepts(model, grammar, muse_answer(None, ROME, "other"))


@pytest.mark.parametrize(
    ("schema", "kind", "text", "passes"),
    [
        ({"type": ["string", "null"]}, "string", "a<b", True),
        ({"type": ["string", "null"]}, "null", "null", True),
        ({"type": ["string", "null"]}, "null", "5", False),
        ({"type": ["string", "null"]}, "number", "5", False),
        ({"type": "array", "items": {"type": "integer"}}, "array", "[1, 2]", True),
        ({"type": "array", "items": {"type": "integer"}}, "string", "[1, 2]", False),
        ({"type": "integer"}, "number", "5", True),
        ({"enum": ["a", 1]}, "string", "a", True),
        ({"enum": ["a", 1]}, "string", "1", False),
    ],
)
def test_kimi_k3_names_the_type_of_a_value(model, schema, kind, text, passes):
    key = 'a "b" & c'
    parameters = {"type": "object", "properties": {key: schema}, "required": [key]}
    body = ask(tool_choice="required", function={"strict": True, "parameters": parameters})
    grammar = chat_grammar(body, kimi_k3(model[0]), False)
    call = xtml("get_weather", {"city": text})
    call = call.replace('"city" type="string"', f'"a &quot;b&quot; &amp; c" type="{kind}"')
    assert accepts(model, grammar, BLOCK + call + MESSAGE_END) == passes


@pytest.mark.parametrize(
    ("schema", "text", "passes"),
    [
        ({"type": "string"}, "a b", True),
        ({"type": "string"}, "a\nb", False),
        ({"type": "string"}, " a", False),
        ({"type": "string"}, "<![CDATA[ a\n<b> ]]>", True),
        ({"type": "string", "maxLength": 2}, "<![CDATA[abc]]>", False),
        ({"type": "string", "maxLength": 2}, "<![CDATA[<b]]>", True),
        ({"enum": [" a", "b"]}, "<![CDATA[ a]]>", True),
        ({"enum": [" a", "b"]}, " a", False),
        ({"type": "array"}, '<![CDATA[["<"]]]>', True),
        ({"type": "array"}, '["<"]', True),
    ],
)
def test_minicpm_quotes_what_would_not_be_read_as_it_is(model, schema, text, passes):
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    body = ask(tool_choice="required", function={"strict": True, "parameters": parameters})
    grammar = chat_grammar(body, markers_of("minicpm5", model[0]), False)
    call = f'<function name="get_weather"><param name="x">{text}</param></function>'
    assert accepts(model, grammar, call) == passes
