"""Tool calls in every format are parsed by mlx-lm's parsers; unparsable text gives no calls."""

import importlib
import json
import pkgutil
import threading
import time

import mlx_lm.tool_parsers
import pytest

from engine.model.tool_calls import MAX_CONCURRENT_PARSES, WrittenCall, read_calls, read_calls_with_timeout

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
]
XTML = "<|open|>{0}<|sep|>{1}<|close|>{2}<|sep|>".format
WRITTEN = {
    "json_tools": '\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n',
    "function_gemma": "call:weather{city:<escape>Rome<escape>,days:2}",
    "gemma4": 'call:weather{city:<|"|>Rome<|"|>,days:2}',
    "glm47": "weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n",
    "laguna": "weather<arg_key>city</arg_key><arg_value>Rome</arg_value>"
    "<arg_key>days</arg_key><arg_value>2</arg_value>",
    "kimi_k2": "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
    '{"city": "Rome", "days": 2}<|tool_call_end|>',
    "kimi_k3": XTML(
        'call tool="weather" index="1"',
        XTML('argument key="city" type="string"', "Rome", "argument")
        + XTML('argument key="days" type="integer"', "2", "argument"),
        "call",
    ),
    "longcat": "weather\n<longcat_arg_key>city</longcat_arg_key>\n<longcat_arg_value>Rome</longcat_arg_value>"
    "<longcat_arg_key>days</longcat_arg_key>\n<longcat_arg_value>2</longcat_arg_value>",
    "minicpm5": '"weather"><param name="city">Rome</param><param name="days">2</param>',
    "minimax_m2": '<invoke name="weather">\n<parameter name="city">Rome</parameter>\n'
    '<parameter name="days">2</parameter>\n</invoke>',
    "mistral": 'weather[ARGS]{"city": "Rome", "days": 2}',
    "muse_spark": '<atem:invoke name="weather"><atem:parameter name="city">Rome</atem:parameter>'
    '<atem:parameter name="days">2</atem:parameter></atem:invoke>',
    "pythonic": '[weather(city="Rome", days=2)]',
    "qwen3_coder": "\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n",
}


def _parser(name):
    return importlib.import_module(f"mlx_lm.tool_parsers.{name}").parse_tool_call


def test_every_format_of_mlx_lm_is_tried() -> None:
    assert WRITTEN.keys() == {module.name for module in pkgutil.iter_modules(mlx_lm.tool_parsers.__path__)}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_call_is_read(name: str) -> None:
    (call,) = read_calls(_parser(name), WRITTEN[name], TOOLS)
    assert call.name == "weather"
    assert json.loads(call.arguments) == {"city": "Rome", "days": 2}


def test_several_calls_in_one_text_are_all_read() -> None:
    calls = read_calls(_parser("pythonic"), "[a(x=1), b(y='ż')]", [])
    assert calls == [WrittenCall("a", '{"x": 1}'), WrittenCall("b", '{"y": "ż"}')]


def test_a_call_that_takes_too_long_to_read_is_no_call() -> None:
    may_end = threading.Event()
    begun_s = time.monotonic()
    for _ in range(MAX_CONCURRENT_PARSES):
        assert read_calls_with_timeout(lambda *_: may_end.wait(10), "", [], 0.05) == []
    # All slots are taken by parses that still run.
    assert read_calls_with_timeout(_parser("json_tools"), WRITTEN["json_tools"], []) == []
    assert time.monotonic() - begun_s < 5
    may_end.set()
    while not (calls := read_calls_with_timeout(_parser("json_tools"), WRITTEN["json_tools"], [])):
        assert time.monotonic() - begun_s < 10
    assert calls[0].name == "weather"


def test_a_text_that_takes_exponential_time_is_given_up() -> None:
    begun_s = time.monotonic()
    assert read_calls_with_timeout(_parser("gemma4"), "call:f{" * 500, TOOLS, 0.1) == []
    assert time.monotonic() - begun_s < 5


def test_the_id_that_a_model_gives_is_kept() -> None:
    (call,) = read_calls(_parser("kimi_k2"), WRITTEN["kimi_k2"], [])
    assert call.id == "functions.weather:0"


@pytest.mark.parametrize("name", sorted(WRITTEN.keys() - {"glm47", "laguna"}))
@pytest.mark.parametrize("text", ["", "hello", "{", '{"name": ', "[" * 5000, "\0"])
def test_unparsable_text_gives_no_calls(name: str, text: str) -> None:
    assert read_calls(_parser(name), text, TOOLS) == []


@pytest.mark.parametrize(
    "call",
    [
        [],
        {},
        5,
        None,
        {"name": "f", "arguments": [1]},
        {"name": "f", "arguments": "x"},
        {"name": 5, "arguments": {}},
        {"name": "", "arguments": {}},
        {"name": "\ud800", "arguments": {}},
        {"arguments": {}},
        {"name": "f", "arguments": {"a": float("nan")}},
        [{"name": "f", "arguments": {}}, {"name": "g", "arguments": 5}],
    ],
)
def test_invalid_results_of_a_parser_give_no_calls(call: object) -> None:
    assert read_calls(lambda *_: call, "", []) == []


def test_arguments_can_always_be_sent() -> None:
    (call,) = read_calls(_parser("json_tools"), '{"name": "f", "arguments": {"a": "\\ud800 \\u017c"}}', [])
    assert call.arguments == '{"a": "\\ud800 \\u017c"}'
    assert call.arguments.encode()


def test_arguments_may_be_a_json_string() -> None:
    (call,) = read_calls(_parser("json_tools"), '{"name": "f", "arguments": "{\\"a\\": 1}"}', [])
    assert call.arguments == '{"a": 1}'
