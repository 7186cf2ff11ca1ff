"""mlx-lm's parsers parse tool calls in every format, in processes that a text may take too much of."""

import importlib
import json
import pkgutil
import sys
import threading
from dataclasses import replace

import mlx_lm.tool_parsers
import psutil
import pytest

from reprise.engine.foreign import child_script
from reprise.engine.foreign.tool_calls import PARSE_LIMITS, ParseLimitError, ParserProcesses, WrittenCall

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


HOSTILE = "call:f{" * 1000
"""Text on which mlx-lm's parser for Gemma 4 takes seconds; twice the text takes eight times as long."""


def _parser(name):
    return importlib.import_module(f"mlx_lm.tool_parsers.{name}").parse_tool_call


def read_calls(parse, text, tools):
    return [WrittenCall(**call) for call in child_script.read_calls(parse, text, tools)]


@pytest.fixture(scope="module")
def processes():
    return ParserProcesses(replace(PARSE_LIMITS, cpu_s=0.1))


def _assert_parses(processes):
    (call,) = processes.parse("json_tools", WRITTEN["json_tools"], b"[]")
    assert call.name == "weather"


def _newest_child():
    return max(psutil.Process().children(), key=lambda one: one.create_time())


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


@pytest.mark.parametrize("name", WRITTEN)
def test_a_process_reads_the_same(processes, name: str) -> None:
    tools = json.dumps(TOOLS).encode()
    assert processes.parse(name, WRITTEN[name], tools) == read_calls(_parser(name), WRITTEN[name], TOOLS)
    assert processes.parse(name, "", tools) == read_calls(_parser(name), "", TOOLS)


def test_no_process_runs_before_the_first_call() -> None:
    before = len(psutil.Process().children())
    processes = ParserProcesses()
    assert len(psutil.Process().children()) == before
    _assert_parses(processes)
    assert len(psutil.Process().children()) == before + 1
    _assert_parses(processes)
    assert len(psutil.Process().children()) == before + 1


@pytest.mark.parametrize(
    ("call_format", "text"),
    [
        ("gemma4", HOSTILE),
        ("muse_spark", "<atem:invoke " * 5000),
        ("glm47", "<arg_key>a</arg_key>" * 20_000),
        ("kimi_k3", "<|open|>call" * 5000),
        ("function_gemma", "call:f{" * 20_000),
    ],
)
def test_a_text_that_takes_too_long_is_given_up_and_the_next_one_is_read(
    processes, call_format: str, text: str
) -> None:
    with pytest.raises(ParseLimitError, match=r"0\.1 seconds"):
        processes.parse(call_format, text, b"[]")
    _assert_parses(processes)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit a process's memory")
def test_a_text_that_takes_too_much_memory_is_given_up() -> None:
    processes = ParserProcesses(replace(PARSE_LIMITS, memory_bytes=96 * 2**20))
    _assert_parses(processes)
    text = json.dumps({"name": "f", "arguments": {"a": "x" * (48 * 2**20)}})
    with pytest.raises(ParseLimitError):
        processes.parse("json_tools", text, b"[]")
    _assert_parses(processes)


def test_a_process_that_does_not_reply_is_killed() -> None:
    processes = ParserProcesses(replace(PARSE_LIMITS, wall_s=0.3))
    _assert_parses(processes)
    child = _newest_child()
    child.suspend()
    with pytest.raises(ParseLimitError):
        processes.parse("json_tools", "{}", b"[]")
    assert not child.is_running()


def test_a_process_that_died_is_replaced() -> None:
    processes = ParserProcesses()
    _assert_parses(processes)
    child = _newest_child()
    child.kill()
    child.wait()
    _assert_parses(processes)


def test_texts_are_parsed_at_the_same_time() -> None:
    processes = ParserProcesses(replace(PARSE_LIMITS, cpu_s=60.0, wall_s=60.0))
    before = set(psutil.Process().children())
    given_up = threading.Event()

    def parse() -> None:
        with pytest.raises(ParseLimitError):
            processes.parse("gemma4", HOSTILE * 10, b"[]")
        given_up.set()

    thread = threading.Thread(target=parse)
    thread.start()
    while not (started := set(psutil.Process().children()) - before):
        assert thread.is_alive()
    _assert_parses(processes)
    assert not given_up.is_set()
    for child in started:
        child.kill()
    thread.join(240)
    assert given_up.is_set()


def test_the_process_does_not_inherit_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRISE_API_KEY", "secret")
    _assert_parses(ParserProcesses())
    assert "secret" not in _newest_child().environ().values()


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
