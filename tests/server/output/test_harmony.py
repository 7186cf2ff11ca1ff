"""gpt-oss's channels become reasoning, tool calls and content, however the text is split."""

import pytest

from reprise.engine.interface.events import Delta, Finished, Usage
from reprise.engine.text.markers import HARMONY, Markers
from reprise.server.output.chat_parser import parser_factory
from reprise.server.output.parser_base import ToolCallRules
from reprise.server.output.parts import CallArgumentsPart, ChoiceOutput, ToolCallPart
from tests.server.counted_text import CountedText
from tests.server.fake_engine import marker

TOKENS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>")
MARKERS = Markers(
    marker("<|channel|>analysis<|message|>"),
    marker("<|end|>"),
    marker("<|call|>"),
    inner=tuple(map(marker, TOKENS)),
    call_format=HARMONY,
)
ANALYSIS = "<|channel|>analysis<|message|>User greets. Reply.<|end|>"
NEXT = "<|start|>assistant"
CITY = '{"location":"San Francisco"}'
CALL = f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{CITY}"
LATER = f" to=functions.get_weather<|channel|>commentary json<|message|>{CITY}"
FINAL = "<|channel|>final<|message|>Hello!"
PREAMBLE = "<|channel|>commentary<|message|>**Plan**<|end|>"
WEATHER = [("get_weather", CITY)]

# The examples of the format's documentation: https://cookbook.openai.com/articles/openai-harmony
CASES: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    (ANALYSIS + NEXT + FINAL, "User greets. Reply.", "Hello!", []),
    (FINAL, "", "Hello!", []),
    (ANALYSIS + NEXT + CALL, "User greets. Reply.", "", WEATHER),
    (ANALYSIS + NEXT + LATER, "User greets. Reply.", "", WEATHER),
    (ANALYSIS + NEXT + CALL + "<|call|>", "User greets. Reply.", "", WEATHER),
    (LATER, "", "", WEATHER),
    (ANALYSIS + NEXT + PREAMBLE + NEXT + CALL, "User greets. Reply.", "**Plan**", WEATHER),
    (CALL.replace("get_weather", "mcp.search"), "", "", [("mcp.search", CITY)]),
    (LATER.replace("get_weather", "a:b/c-d"), "", "", [("a:b/c-d", CITY)]),
    (PREAMBLE + NEXT + FINAL, "", "**Plan**\n\nHello!", []),
    (CALL + "<|call|>" + NEXT + LATER, "", "", WEATHER * 2),
    ("<|channel|>analysis<|message|>hm", "hm", "", []),
    ("<|channel|>analysis<|message|>", "", "", []),
    ("<|channel|>anal", "", "", []),
    ("plain text", "", "plain text", []),
    ("<|channel|>commentary to=python <|message|>print(1)<|call|>", "print(1)", "", []),
    ("<|channel|>final<|message|>a <| b |> c<|", "", "a <| b |> c<|", []),
    ("<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{", "", "{", []),
]


def read(pieces, rules, reason="stop"):
    parser = parser_factory(MARKERS, False, rules)()
    parts = [part for piece in pieces for part in parser.read(Delta(piece))]
    tokens = tuple("".join(pieces).encode())
    return parser, parts + parser.end(Finished(reason, Usage(), tokens))


def shown(parts):
    output = ChoiceOutput.of(parts)
    return output.reasoning, output.text, [(call.name, call.arguments) for call in output.tool_calls]


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("text", "reasoning", "content", "calls"), CASES, ids=[repr(r[0]) for r in CASES])
def test_channels_are_told_apart_wherever_the_text_is_split(text, reasoning, content, calls, is_streamed):
    rules = ToolCallRules(is_streamed=is_streamed)
    wanted = (reasoning, content, calls)
    if is_streamed and content == "{":
        wanted = ("", "", [("get_weather", "{")])
    for pieces in ([text], list(text), *([text[:at], text[at:]] for at in range(1, len(text)))):
        parts = read(pieces, rules)[1]
        assert shown(parts) == wanted
        assert parts[-1].finish_reason == ("tool_calls" if calls else "stop")


def test_a_streamed_call_s_arguments_come_as_they_are_written():
    _, parts = read(list(CALL), ToolCallRules(is_streamed=True))
    assert isinstance(parts[0], ToolCallPart)
    assert sum(isinstance(part, CallArgumentsPart) for part in parts) == len(CITY)


def test_without_parallel_calls_the_answer_ends_with_the_first():
    _, parts = read([CALL, "<|call|>", NEXT, FINAL], ToolCallRules(is_parallel=False))
    assert shown(parts) == ("", "", WEATHER)


def test_without_tools_a_call_is_content():
    _, parts = read([CALL], None)
    assert shown(parts) == ("", CITY, [])


def test_reasoning_tokens_are_those_of_the_analysis_channel():
    parser, _ = read([ANALYSIS + NEXT + FINAL], None)
    assert parser.num_reasoning_tokens == len(ANALYSIS)


def test_reading_takes_time_in_proportion_to_the_text():
    parser = parser_factory(MARKERS, False, ToolCallRules())()
    CountedText.num_characters = 0
    for _ in range(500):
        parser.read(Delta(CountedText("a <b> ")))
    parser.end(Finished("stop", Usage()))
