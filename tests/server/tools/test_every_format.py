"""Answers with calls in every format of mlx-lm's parsers, with their own tests as cases.

Each text stands between the format's markers, as an answer that comes whole or in single characters.
"""

import json
import pkgutil
from functools import partial

import mlx_lm.tool_parsers
import pytest

from reprise.engine.interface.events import Delta, Finished, Usage
from reprise.engine.text.markers import Markers
from reprise.server.output.chat_parser import MarkerParser
from reprise.server.output.parser_base import ToolCallRules
from reprise.server.output.parts import ChoiceOutput, ToolCallPart
from reprise.server.tools import formats
from reprise.server.tools.formats import find_format
from reprise.server.tools.readers import make_reader
from reprise.server.tools.values import MAX_SIGNS
from tests.counted_calls import count_calls
from tests.server.counted_text import CountedText
from tests.server.fake_engine import marker
from tests.server.output.test_chat_parser import parsed
from tests.server.tools.mlx_lm_parsers import parsed_by_mlx_lm

MARKERS = {
    "function_gemma": ("<start_function_call>", "<end_function_call>"),
    "gemma4": ("<|tool_call>", "<tool_call|>"),
    "glm47": ("<tool_call>", "</tool_call>"),
    "laguna": ("<tool_call>", "</tool_call>"),
    "json_tools": ("<tool_call>", "</tool_call>"),
    "kimi_k2": ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    "kimi_k3": ("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
    "longcat": ("<longcat_tool_call>", "</longcat_tool_call>"),
    "minicpm5": ("<function name=", "</function>"),
    "minimax_m2": ("<minimax:tool_call>", "</minimax:tool_call>"),
    "mistral": ("[TOOL_CALLS]", ""),
    "muse_spark": ("<atem:function_calls>", "</atem:function_calls>"),
    "pythonic": ("<|tool_call_start|>", "<|tool_call_end|>"),
    "qwen3_coder": ("<tool_call>", "</tool_call>"),
}
XTML = "<|open|>{0}<|sep|>{1}<|close|>{2}<|sep|>".format
CALL_K3 = partial(XTML, 'call tool="multiply" index="1"')
ARGUMENT_K3 = 'argument key="{}" type="number"'.format
ATEM = '<atem:invoke {}name="multiply"><atem:parameter name="a">12234585</atem:parameter>\n'
ATEM += '<atem:parameter name="b" kind="n">48838483920</atem:parameter></atem:invoke>'

PRODUCT = [("multiply", {"a": 12234585, "b": 48838483920})]
JSON = '{"name": "multiply", "arguments": {"a": 12234585, "b": 48838483920}}'
PAIRS = (
    "multiply<arg_key>a</arg_key><arg_value>12234585</arg_value>"
    "<arg_key>b</arg_key><arg_value>48838483920</arg_value>"
)
OBJECT = '{"a": 12234585, "b": 48838483920}'
MULTIPLY = {
    "function_gemma": ["call:multiply{a:12234585,b:48838483920}"],
    "gemma4": ["call:multiply{a:12234585,b:48838483920}"],
    "glm47": [
        JSON,
        f"[{JSON}]",
        f'{{"tool": {JSON}}}',
        JSON.replace('"name"', '"function"'),
        "multiply a=12234585 b=48838483920",
        f"multiply {OBJECT}",
        f"multiply\n{OBJECT}",
        "multiply {'a': 12234585, 'b': 48838483920}",
        PAIRS,
        PAIRS.replace("><arg_value", ">\n<arg_value"),
    ],
    "laguna": [PAIRS, JSON],
    "json_tools": [
        JSON,
        f"[{JSON}]",
        f'{{"arguments": {OBJECT}, "name": "multiply"}}',
        f'{{"type": "function", "name": "multiply", "arguments": {OBJECT}}}',
        JSON.replace("{", ' {\n  "id": "c",', 1),
        '{"name": "multiply", "arguments": "{\\"a\\": 12234585, \\"b\\": 48838483920}"}',
    ],
    "kimi_k2": [
        f"<|tool_call_begin|>functions.multiply:0<|tool_call_argument_begin|>{OBJECT}<|tool_call_end|>",
        f"functions.multiply:0<|tool_call_argument_begin|>{OBJECT}",
    ],
    "kimi_k3": [
        CALL_K3(XTML(ARGUMENT_K3("a"), "12234585", "argument") + XTML(ARGUMENT_K3("b"), "48838483920",
        "argument"), "call"),
        CALL_K3(XTML('json type="object"', OBJECT, "json"), "call"),
        CALL_K3(XTML("json", OBJECT, "json"), "call").replace(' index="1"', ""),
    ],
    "longcat": [JSON, PAIRS.replace("arg_", "longcat_arg_")],
    "minicpm5": [
        '"multiply"><param name="a">12234585</param><param name="b">48838483920</param>',
        "multiply><param name='a'> 12234585</param>\n<param name=b><![CDATA[48838483920]]></param>",
    ],
    "minimax_m2": [
        ('<invoke name="multiply">\n<parameter name="a">12234585</parameter>\n'
        '<parameter name="b">48838483920</parameter>\n</invoke>')
    ],
    "mistral": [f"multiply[ARGS]{OBJECT}", f"[{JSON}]"],
    "muse_spark": [ATEM.format(""), ATEM.format('id="1" ')],
    "pythonic": ["[multiply(a=12234585, b=48838483920)]"],
    "qwen3_coder": [
        ("<function=multiply>\n<parameter=a>\n12234585\n</parameter>\n<parameter=b>\n48838483920\n</parameter>"
        "\n</function>")
    ],
}  # fmt: skip
LONDON_JSON = '{"name": "where", "arguments": {"location": "London"}}'
LONDON = {
    "function_gemma": ["call:where{location:<escape>London<escape>}", "call:where{location:London}"],
    "gemma4": ['call:where{location:<|"|>London<|"|>}'],
    "glm47": [
        'where<arg_key>location</arg_key><arg_value>"London"</arg_value>',
        "where location='London'",
    ],
    "laguna": ["where<arg_key>location</arg_key><arg_value>London</arg_value>"],
    "json_tools": [LONDON_JSON],
    "longcat": [
        "where<longcat_arg_key>location</longcat_arg_key>\n<longcat_arg_value>London</longcat_arg_value>",
        LONDON_JSON,
    ],
    "minimax_m2": ['<invoke name="where">\n<parameter name="location">London</parameter>\n</invoke>'],
    "mistral": ['where[ARGS]{"location": "London"}'],
    "pythonic": ['[where(location="London")]', "[where(location=London)]"],
    "qwen3_coder": ["<function=where>\n<parameter=location>\nLondon\n</parameter>\n</function>"],
}
OTHERS = {
    "gemma4": [
        'call:configure{settings:{enabled:true,name:<|"|>test<|"|>}}',
        'call:tag{items:[<|"|>foo<|"|>,<|"|>bar<|"|>]}',
        'call:search{query:<|"|>hello world<|"|>,limit:10,verbose:false}',
        'call:glob{pattern:<|"|>README*.md<|"|>}call:glob{pattern:<|"|>CONTRIBUTING.md<|"|>}',
        (
            'call:search{query:<|"|>weather<|"|>,limit:5}'
            'call:configure{settings:{enabled:true,name:<|"|>test<|"|>}}'
        ),
        'call:manim-video{mode:<|"|>plan<|"|>,prompt:<|"|>explain KV caching<|"|>}',
        (
            'call:skill_manage{action:<|"|>create<|"|>,'
            'content:<|"|>use a dict like {key: value} in your code<|"|>}'
        ),
    ],
    "kimi_k2": [
        (
            '<|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{"query": "weather"}'
            "<|tool_call_end|><|tool_call_begin|>functions.read_file:1<|tool_call_argument_begin|>"
            '{"path": "/tmp/test.txt"}<|tool_call_end|>'
        ),
    ],
    "minimax_m2": [
        (
            '<invoke name="search">\n<parameter name="query">weather</parameter>\n</invoke>\n'
            '<invoke name="read_file">\n<parameter name="path">/tmp/test.txt</parameter>\n</invoke>'
        ),
    ],
    "qwen3_coder": [
        (
            "<function=search><parameter=filters>{'category': 'books', 'in_stock': True}</parameter>"
            "<parameter=tags>['fiction', 'new']</parameter></function>"
        ),
        (
            '<function=search><parameter=filters>{"category": "books"}</parameter>'
            '<parameter=tags>["fiction", "new"]</parameter></function>'
        ),
        (
            "<function=schedule>\n<parameter=name>\ndeploy\n</parameter>\n<parameter=deadline>\n"
            "2025-06-15T10:30:00Z\n</parameter>\n</function>"
        ),
        "<function=log>\n<parameter=msg>\nversion 3.10.5-beta\n</parameter>\n</function>",
    ],
    "pythonic": ["[a(x=1), b(y='ż')]", "[a(x={'a': [True, null]}, y=\"it's\")]"],
    "mistral": ['[{"name": "f", "arguments": {"a": "b"}, "id": "abc"}, {"name": "g"}]'],
    "json_tools": ['[{"name": "f", "arguments": {"a": "b"}, "id": "abc"}, {"name": "g"}]'],
}
CASES = [
    (name, text, known)
    for texts, known in ((MULTIPLY, "multiply"), (LONDON, "where"), (OTHERS, "all"))
    for name, some in texts.items()
    for text in some
]
PROPERTIES = {
    "multiply": {"a": {"type": "number"}, "b": {"type": "number"}},
    "where": {"location": {"type": "str"}},
    "search": {"filters": {"type": "object"}, "tags": {"type": "array"}, "query": {"type": "string"},
        "limit": {"type": "integer"}, "verbose": {"type": "boolean"}},
    "schedule": {"name": {"type": "string"}, "deadline": {"type": "string"}},
    "log": {"msg": {"type": "string"}},
    "read_file": {"path": {"type": "string"}},
    **{name: {} for name in ("configure", "tag", "glob", "manim-video", "skill_manage", "a", "b", "f", "g")},
}  # fmt: skip
SCHEMAS = {name: {"type": "object", "properties": known} for name, known in PROPERTIES.items()}
TOOLS = [{"type": "function", "function": {"name": n, "parameters": p}} for n, p in SCHEMAS.items()]


def read(name, text, schemas=SCHEMAS, *, is_streamed=False, size=1, has_end=True, reason="stop"):
    """Return the parts of an answer with a text between the format's markers, or only behind the first."""
    start, end = MARKERS[name]
    inner = (marker("[ARGS]"),) if name == "mistral" else ()
    markers = Markers(
        call_start=marker(start), call_end=marker(end) if end else None, inner=inner, call_format=name
    )
    rules = ToolCallRules(
        make_reader=partial(make_reader, find_format(markers), schemas), is_streamed=is_streamed
    )
    parser = MarkerParser(markers, False, rules)
    written = type(text)(start + text + end * has_end)
    parts = [
        part for at in range(0, len(written), size) for part in parser.read(Delta(written[at : at + size]))
    ]
    return parts + parser.end(Finished(reason, Usage()))


def calls_in(name, text, schemas=SCHEMAS, **how):
    output = ChoiceOutput.of(read(name, text, schemas, **how))
    assert output.text == ""
    return [(call.name, json.loads(call.arguments)) for call in output.tool_calls]


def test_every_parser_of_mlx_lm_has_a_reader_and_cases():
    names = {module.name for module in pkgutil.iter_modules(mlx_lm.tool_parsers.__path__)}
    assert names == MARKERS.keys() == MULTIPLY.keys()
    assert names <= formats.FORMATS.keys()


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("name", "text", "known"), CASES)
def test_a_call_is_what_mlx_lm_s_parser_reads(name, text, known, is_streamed):
    wanted = parsed_by_mlx_lm(name, text, TOOLS)
    assert wanted
    assert known == "all" or wanted == (
        PRODUCT if known == "multiply" else [("where", {"location": "London"})]
    )
    for size in (1, 7, len(text) + 99):
        assert calls_in(name, text, is_streamed=is_streamed, size=size) == wanted


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("name", "text", "known"), CASES)
def test_a_call_of_no_tool_of_the_request_is_what_mlx_lm_s_parser_reads(name, text, known, is_streamed):
    wanted = parsed_by_mlx_lm(name, text, [])
    for size in (1, len(text) + 99):
        assert calls_in(name, text, {}, is_streamed=is_streamed, size=size) == wanted
        parts = read(name, text, {}, is_streamed=is_streamed, size=size)
        assert all(isinstance(part, ToolCallPart) for part in parts[:-1]), known


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize("name", sorted(MULTIPLY.keys() - {"glm47", "laguna", "longcat", "minicpm5"}))
def test_a_call_is_complete_without_the_end_of_its_section(name, reason, is_streamed):
    text, (start, end) = MULTIPLY[name][0], MARKERS[name]
    assert calls_in(name, text, is_streamed=is_streamed, has_end=False, reason=reason) == PRODUCT
    assert calls_in(name, text + (start if end else "[TOOL_CALLS]") + text, has_end=False) == PRODUCT * 2


@pytest.mark.parametrize("name", MULTIPLY)
def test_two_calls_are_two(name):
    (text, *_), (start, end) = MULTIPLY[name], MARKERS[name]
    between = f"{end}{start}" if end else "[TOOL_CALLS]"
    for schemas in (SCHEMAS, {}):
        for size in (1, 9999):
            found = calls_in(name, f"{text}{between}{text}", schemas, size=size)
            assert found == PRODUCT * 2 or (schemas == {} and [one[0] for one in found] == ["multiply"] * 2)


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", ["json_tools", "glm47", "longcat", "mistral"])
def test_arguments_under_another_name_are_not_lost(name, is_streamed):
    others = [
        (JSON.replace("arguments", "parameters"), PRODUCT),
        ('{"name": "multiply", "id": "c", "type": "function"}', [("multiply", {})]),
        ('{"name": "multiply", "args": {"a": 1}}', []),
        ('{"name": "multiply", "a": 1}', []),
    ]
    if name == "glm47":
        others.append(('{"function": "multiply"}', [("multiply", {})]))
    start, end = MARKERS[name]
    for text, wanted in others:
        text = f"[{text}]" if name == "mistral" else text
        output = ChoiceOutput.of(read(name, text, is_streamed=is_streamed))
        assert [(call.name, json.loads(call.arguments)) for call in output.tool_calls] == wanted
        assert output.text == ("" if wanted else start + text + end)


WITH_BREAKS = {
    "json_tools": JSON,
    "json_tools in another form": f'{{"arguments": {OBJECT}, "name": "multiply"}}',
    "kimi_k2": MULTIPLY["kimi_k2"][0],
    "mistral": MULTIPLY["mistral"][0],
}


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("schemas", [SCHEMAS, {}], ids=["known", "unknown"])
@pytest.mark.parametrize(("name", "text"), WITH_BREAKS.items(), ids=WITH_BREAKS)
def test_json_strings_may_have_raw_control_characters(name, text, schemas, is_streamed):
    text = text.replace("{", "{\n").replace("12234585", '"x\n\t\x1f\\n\\"\n"')
    wanted = [("multiply", {"a": 'x\n\t\x1f\n"\n', "b": 48838483920})]
    for size in (1, 9999):
        assert calls_in(name.split()[0], text, schemas, is_streamed=is_streamed, size=size) == wanted


MALFORMED = ["{", '{"name": ', '{"name": "multiply", "arguments": [1]}', "[" * 5000, "two words", "a, b",
    '{"name": "", "arguments": {}}', '{"name": "nan", "arguments": {"a": NaN}}', "\0",
    '{"name": "huge", "arguments": {"a": [1e999]}}',
    '{"name": 5, "arguments": {}}',
    '{"arguments": {}}', '{"name": "\\ud800", "arguments": {}}', "[]", "[5]", "a=1", "a b=1 c"]  # fmt: skip


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", MULTIPLY)
def test_malformed_text_is_text(name, is_streamed):
    start, end = MARKERS[name]
    for text in MALFORMED:
        for size in (1, 9999):
            output = ChoiceOutput.of(read(name, text, is_streamed=is_streamed, size=size))
            assert parsed(output) == ("", start + text + end, [], "stop")


@pytest.mark.parametrize("name", MULTIPLY)
def test_a_broken_call_is_text_unless_it_has_been_sent(name):
    start, end = MARKERS[name]
    text = MULTIPLY[name][0]
    text = text.replace("12234585", "[1").replace("48838483920", "{")
    text = text.replace("arg_value", "arg_other").replace("</param", "</other").replace("argument<", "x<")
    if name in ("minicpm5", "minimax_m2", "muse_spark", "qwen3_coder"):
        text = text.replace("parameter", "paramater").replace("param name", "parem name")
    output = ChoiceOutput.of(read(name, text))
    assert parsed(output) == ("", start + text + end, [], "stop")
    sent = ChoiceOutput.of(read(name, text, is_streamed=True))
    assert sent.text in ("", start + text + end)


LIMITED = {
    "json_tools": '{{"name": "f", "arguments": {{"a": {}}}}}',
    "json_tools in another form": '{{"arguments": {{"a": {}}}, "name": "f"}}',
    "gemma4": "call:f{{a:{}}}",
    "pythonic": "[f(a={})]",
}


@pytest.mark.parametrize(("name", "text"), LIMITED.items(), ids=LIMITED)
def test_arguments_have_a_limit_of_values(name, text):
    name = name.partition(" ")[0]
    for num, is_call in ((MAX_SIGNS - 5, True), (MAX_SIGNS + 1, False)):
        output = ChoiceOutput.of(read(name, text.format("[" + "0," * num + "0]"), size=999))
        assert bool(output.tool_calls) == is_call
    string = ("'" if name == "pythonic" else '<|"|>' if name == "gemma4" else '"').join(["", "x" * 10**6, ""])
    assert ChoiceOutput.of(read(name, text.format(string), size=999)).tool_calls


HOSTILE = ["x", " ", "\n", '"', "'", "[", "{", "(", "<", "a:", "a=1 ", ",", "\\", "&", "1,", '"a":1,',
    "call:f{", "<arg_key>a</arg_key>", "<atem:invoke ", 'name="', "<|open|>call", "<parameter=a>", "</",
]  # fmt: skip


@pytest.mark.parametrize("name", MULTIPLY)
@pytest.mark.parametrize("opening", ["", "a call", "a value"])
def test_reading_takes_work_in_proportion_to_the_text(name, opening):
    """Counted in characters that are copied or compared and in calls, in pieces of twenty characters."""
    whole = MULTIPLY[name][0]
    begun = whole[: whole.index("a", whole.index("multiply") + 8)]
    head = {"": "", "a call": begun, "a value": whole[: whole.index("12234585")]}[opening]
    for unit in HOSTILE:
        work = []
        for length in (1200, 2400):
            text = CountedText(head + (unit * length)[:length])
            CountedText.num_touched = 0
            num_calls = count_calls(partial(read, name, text, size=20))
            work.append((CountedText.num_touched, num_calls))
        (touched, calls), (touched_twice, calls_twice) = work
        assert touched_twice < 2.3 * touched + 20_000, unit
        assert calls_twice < 2.3 * calls + 1000, unit
