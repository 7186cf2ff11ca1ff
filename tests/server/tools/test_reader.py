"""Tool calls are read bit by bit as mlx-lm's parsers read them whole."""

import json
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprise.engine.text.markers import Markers
from reprise.server.tools.formats import find_format
from reprise.server.tools.readers import OpenedCall, WrittenCall, make_reader
from tests.counted_calls import count_calls
from tests.server.fake_engine import marker
from tests.server.tools.mlx_lm_parsers import parsed_by_mlx_lm

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "places": {"type": "array", "items": {"type": "string"}},
    },
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
VALUES = {"city": 'Rome\n "x" </b> ż', "days": 2, "exact": True, "places": ["a", "b\n"]}
JSON = json.dumps(VALUES, ensure_ascii=False)


def tagged(start, middle, end, has_breaks=False):
    edge = "\n" if has_breaks else ""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in VALUES.items()}
    return "".join(f"{start}{key}{middle}{edge}{text}{edge}{end}\n" for key, text in texts.items())


# As the formats' own documentation and chat templates show them.
WRITTEN = {
    "json_tools": f'\n{{"name": "get_weather", "arguments": {JSON}}}\n',
    "llama3": f'"get_weather", "parameters": {JSON}}}',
    "mistral": f"get_weather[ARGS]{JSON}",
    "mistral_list": f' [{{"name": "get_weather", "arguments": {JSON}, "id": "VvvODy9mT"}}]',
    "deepseek_v3": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    f"{JSON}\n```<｜tool▁call▁end｜>",
    "deepseek_v31": f"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{JSON}<｜tool▁call▁end｜>",
    "kimi_k2": "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    f"{JSON}<|tool_call_end|>",
    "qwen3_coder": "\n<function=get_weather>\n"
    + tagged("<parameter=", ">", "</parameter>", True)
    + "</function>\n",
    "minimax_m2": '\n<invoke name="get_weather">\n'
    + tagged('<parameter name="', '">', "</parameter>")
    + "</invoke>\n",
    "glm47": "get_weather\n"
    + tagged("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>")
    + "</tool_call>",
    "laguna": "get_weather" + tagged("<arg_key>", "</arg_key><arg_value>", "</arg_value>") + "</tool_call>",
    "longcat": "get_weather\n"
    + tagged("<longcat_arg_key>", "</longcat_arg_key>\n<longcat_arg_value>", "</longcat_arg_value>")
    + "</longcat_tool_call>",
}


def with_quotes():
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in VALUES.items()}
    shown = {key: f"<![CDATA[{text}]]>" if "<" in text else text for key, text in texts.items()}
    return "".join(f'<param name="{key}"> {text}\n</param>' for key, text in shown.items())


def with_types():
    kinds = {"city": "string", "days": "number", "exact": "boolean", "places": "array"}
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in VALUES.items()}
    return "".join(
        f'<|open|>argument key="{key}" type="{kinds[key]}"<|sep|>{text}<|close|>argument<|sep|>'
        for key, text in texts.items()
    )


WRITTEN |= {
    "minicpm5": f'"get_weather">{with_quotes()}</function>'.replace("]]>\n", "]]>"),
    "muse_spark": '\n<atem:invoke name="get_weather">\n'
    + tagged('<atem:parameter name="', '">', "</atem:parameter>")
    + "</atem:invoke>\n",
    "kimi_k3": f'<|open|>call tool="get_weather" index="1"<|sep|>{with_types()}<|close|>call<|sep|>',
}
GEMMA = '{city:QRome\n "x" </b> żQ,days:2,exact:true,places:[QaQ,Qb\nQ]}'
WRITTEN |= {
    "deepseek_v32": '\n<｜DSML｜invoke name="get_weather">\n'
    '<｜DSML｜parameter name="city" string="true">Rome\n "x" </b> ż</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="exact" string="false">true</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="places" string="false">["a", "b\\n"]</｜DSML｜parameter>\n</｜DSML｜invoke>\n',
    "gemma4": "call:get_weather" + GEMMA.replace("Q", '<|"|>'),
    "function_gemma": "call:get_weather" + GEMMA.replace("Q", "<escape>"),
    "pythonic": r"""[get_weather(city='Rome\n "x" </b> \u017c', days=2, exact=True, """
    r"""places=["a", 'b\n'])]""",
}
MLX_LM = {"mistral_list": "mistral"}
OWN = {"llama3", "deepseek_v3", "deepseek_v31", "deepseek_v32", "function_gemma"}
"""Formats that mlx-lm has no parser for, or one without arrays of strings."""


def format_of(name):
    inner = (marker("[ARGS]"),) if name == "mistral" else ()
    found = find_format(Markers(call_start=marker("<"), inner=inner, call_format=name.removesuffix("_list")))
    assert found is not None
    return found


def read(name, pieces):
    reader = make_reader(format_of(name), {"get_weather": SCHEMA})
    return reader, [part for piece in pieces for part in reader.feed(piece)]


def arguments(parts):
    return "".join(part for part in parts if isinstance(part, str))


@pytest.mark.parametrize("name", WRITTEN)
def test_a_call_is_read_however_the_text_is_split(name):
    text = WRITTEN[name]
    for pieces in ([text], list(text), *([text[:at], text[at:]] for at in range(1, len(text)))):
        reader, parts = read(name, pieces)
        assert (reader.num_closed, reader.is_open, reader.is_broken) == (1, False, False)
        assert isinstance(parts[0], OpenedCall)
        assert parts[0].name == "get_weather"
        assert json.loads(arguments(parts)) == VALUES


@pytest.mark.parametrize("tool", ["mcp.search", "fs/read-2", "a:1", "a.b:c/d"])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_tool_s_name_may_have_dots_colons_and_slashes(name, tool):
    text = WRITTEN[name].replace("get_weather", tool)
    for schemas in ({tool: SCHEMA}, {}):
        reader = make_reader(format_of(name), schemas)
        opened = next((part for character in text for part in reader.feed(character)), None)
        needs_known_name = name in {"llama3", "deepseek_v3", "deepseek_v31", "deepseek_v32"}
        assert (opened and opened.name) == (None if needs_known_name and not schemas else tool)


@pytest.mark.parametrize("name", sorted(WRITTEN.keys() - OWN))
def test_mlx_lm_reads_the_same(name):
    text = WRITTEN[name].removesuffix("</tool_call>").removesuffix("</longcat_tool_call>")
    text = text.removesuffix("</function>") if name == "minicpm5" else text
    assert parsed_by_mlx_lm(MLX_LM.get(name, name), text, TOOLS) == [("get_weather", VALUES)]


@pytest.mark.parametrize("name", WRITTEN)
def test_arguments_arrive_before_the_call_is_complete(name):
    text = WRITTEN[name]
    at = text.index("Rome") + 2
    _, parts = read(name, [text[:at], *text[at : at + 20]])
    assert len(parts) > 2
    assert "Ro" in arguments(parts)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_call_of_another_tool_comes_whole_or_is_text(name):
    text = WRITTEN[name].replace("get_weather", "other")
    for pieces in ([text], list(text)):
        reader, parts = read(name, pieces)
        if name in {"llama3", "deepseek_v3", "deepseek_v31", "deepseek_v32"}:
            assert (reader.is_broken, parts) == (True, [])
        else:
            (call,) = parts
            assert isinstance(call, WrittenCall)
            assert (call.name, json.loads(call.arguments).keys()) == ("other", VALUES.keys())
            assert (reader.num_closed, reader.is_open, reader.is_broken) == (1, False, False)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_call_that_is_cut_short_stays_open(name):
    text = WRITTEN[name]
    reader, parts = read(name, [text[: text.index("Rome") + 4]])
    assert (reader.num_closed, reader.is_open) == (0, True)
    assert arguments(parts)
    assert JSON.startswith(arguments(parts))


SEVERAL = {
    "muse_spark": '\n<atem:invoke name="get_weather">\n</atem:invoke>\n' * 2,
    "kimi_k3": '<|open|>call tool="get_weather" index="1"<|sep|><|close|>call<|sep|>' * 2,
    "mistral": "get_weather[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{}",
    "mistral_list": '[{"name": "get_weather", "arguments": {}}, {"name": "get_weather", "arguments": {}}]',
    "llama3": '"get_weather", "parameters": {}}; {"name": "get_weather", "parameters": {}}',
    "deepseek_v32": '<｜DSML｜invoke name="get_weather">\n</｜DSML｜invoke>\n' * 2,
    "pythonic": "[get_weather(), get_weather()]",
    "minimax_m2": '\n<invoke name="get_weather">\n</invoke>\n<invoke name="get_weather">\n</invoke>\n',
    "deepseek_v31": "<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{}<｜tool▁call▁end｜>" * 2,
    "kimi_k2": "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    * 2,
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_calls_in_a_section_are_read(name):
    reader, parts = read(name, SEVERAL[name])
    assert (reader.num_closed, reader.is_open, reader.is_broken) == (2, False, False)
    assert [part.name for part in parts if isinstance(part, OpenedCall)] == ["get_weather"] * 2
    assert arguments(parts) == "{}{}"


def test_a_value_may_contain_the_end_marker():
    text = "\n<function=get_weather>\n<parameter=city>\n</tool_call>"
    reader, _ = read("qwen3_coder", text)
    assert reader.is_quoting


@pytest.mark.parametrize(
    ("schema", "text", "wanted"),
    [
        ({"type": "string"}, "null", '"null"'),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"type": ["string", "null"]}, "12", '"12"'),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "12", "12"),
        ({"$ref": "#/$defs/n"}, "1.5", "1.5"),
        ({"type": "integer"}, "2.0", "2"),
        ({"type": "integer"}, "many", '"many"'),
        ({"type": "boolean"}, "True", "true"),
        ({"enum": ["1", "2"]}, "1", '"1"'),
        ({}, "1", '"1"'),
        ({}, '{"a": 1}', '{"a":1}'),
        (True, "[1]", "[1]"),
    ],
)
def test_a_value_is_converted_by_its_schema(schema, text, wanted):
    root = {"properties": {"x": schema}, "$defs": {"n": {"type": "number"}}}
    reader = make_reader(format_of("qwen3_coder"), {"f": root})
    parts = reader.feed(f"<function=f><parameter=x>\n{text}\n</parameter></function>")
    assert arguments(parts) == f'{{"x": {wanted}}}'


MALFORMED = st.lists(
    st.sampled_from(
        ["<function=get_weather>", "<parameter=city>", "</parameter>", "</function>", "x", "\n", "{", '"']
    )
)


@settings(deadline=None, max_examples=200)
@given(MALFORMED, st.sampled_from(sorted(WRITTEN)))
def test_no_text_makes_a_reader_fail(pieces, name):
    reader, parts = read(name, pieces)
    whole, same = read(name, ["".join(pieces)])
    assert (reader.num_closed, arguments(parts)) == (whole.num_closed, arguments(same))


def test_a_long_value_takes_time_in_proportion_to_its_length():
    text = "\n<function=get_weather>\n<parameter=places>\n"
    reader, _ = read("qwen3_coder", [text])
    for _ in range(2000):
        reader.feed("x" * 10)
        assert len(reader.rest) < 40


LITERALS = [
    ("'it\\'s'", '"it\'s"'),
    ('"\\ud83d\\ude00\\u017c\\x41\\n"', '"😀żA\\n"'),
    (r"'\d+\.\w\/\"\\'", r'"\\d+\\.\\w/\"\\"'),
    (r"'\a\v\0\101\1012\U0001F600'", r'"\u0007\u000b\u0000AA2😀"'),
    (r"'\Uffffffff'", r'"\\Uffffffff"'),
    (r"'C:\Users'", r'"C:\\Users"'),
    (r"'\u12'", r'"\\u12"'),
    (r"['\x', '\7']", r'["\\x", "\u0007"]'),
    (r"{'a': '\d\101'}", r'{"a": "\\dA"}'),
    ('"\\ud83d"', '"\ufffd"'),
    ("{'a': [True, None, -1.5e3], \"b\": 'x, ]'}", '{"a": [true, null, -1500.0], "b": "x, ]"}'),
    ("[]", "[]"),
    ("0", "0"),
]


@pytest.mark.parametrize(("text", "wanted"), LITERALS)
def test_python_s_literals_are_read_however_they_are_split(text, wanted):
    section = f"[f(x={text}, y='')]"
    for pieces in ([section], list(section), [section.replace(")", ", )")]):
        reader = make_reader(format_of("pythonic"), {"f": {}})
        parts = [part for piece in pieces for part in reader.feed(piece)]
        assert (reader.num_closed, reader.is_broken) == (1, False)
        assert json.loads(arguments(parts)) == {"x": json.loads(wanted), "y": ""}


@pytest.mark.parametrize("text", ["x=f()", "x=[1", "x=[a]", "x=1,x=2", "x=", "x=(1,)", "1"])
def test_what_is_no_literal_is_no_call(text):
    reader = make_reader(format_of("pythonic"), {"f": {}})
    reader.feed(f"[f({text})]")
    assert reader.num_closed == 0


@pytest.mark.parametrize("name", ["gemma4", "pythonic"])
@pytest.mark.parametrize("unit", ["x", "/", "'", '"', "[", "a:", "\\", "<", " "])
def test_hostile_literals_take_time_in_proportion_to_their_length(name, unit):
    head = "call:f{a:[" if name == "gemma4" else "[f(a=["
    took = []
    for size in (500, 5_000):
        reader = make_reader(format_of(name), {"f": {}})
        took.append(count_calls(partial(reader.feed, head + unit * size + "],")))
    assert took[1] < 20 * took[0] + 1000
