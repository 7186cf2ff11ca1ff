"""Content, reasoning and tool calls are parsed the same however the text is split."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reprise.engine.interface.events import Delta, Finished, TokenLogprob, Usage
from reprise.engine.text.markers import Markers
from reprise.server.output.chat_parser import MarkerParser, parser_factory
from reprise.server.output.parser_base import PlainParser, ToolCallRules
from reprise.server.output.parts import (
    ChoiceOutput,
    ReasoningPart,
    TextPart,
    ToolCallPart,
)
from reprise.server.tools.formats import find_format
from reprise.server.tools.readers import JsonStringTracker, make_reader
from tests.server.counted_text import CountedText
from tests.server.fake_engine import CALLING, THINKING, marker

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
F, G = ("f", '{"a": 1}'), ("g", "{}")


def known(call_format, names="fg", *, is_streamed=False, is_parallel=True):
    layout = find_format(replace(CALLING, call_format=call_format))
    reader = partial(make_reader, layout, {name: {} for name in names})
    return ToolCallRules(is_parallel, reader, is_streamed)


UNKNOWN = known("json_tools", names="")
"""No tool of the request has the name that the model writes."""


def read_all(parser, deltas, end):
    parts = [part for delta in deltas for part in parser.read(delta)]
    return ChoiceOutput.of(parts + parser.end(end))


def read(pieces, markers=THINKING, is_thinking=False, rules=UNKNOWN, reason="stop"):
    parser = MarkerParser(markers, is_thinking, rules)
    return read_all(parser, map(Delta, pieces), Finished(reason, Usage()))


def parsed(output):
    return (
        output.reasoning,
        output.text,
        [(call.name, call.arguments) for call in output.tool_calls],
        output.end.finish_reason,
    )


CASES: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    ("hello", "", "hello", []),
    ("  hello \n", "", "  hello \n", []),
    (" \n", "", " \n", []),
    ("<think>\nhm\nso \n</think>\n\nhello", "hm\nso", "hello", []),
    ("<think></think>hello", "", "hello", []),
    ("<think>hm", "hm", "", []),
    ("<think>hm\n\n", "hm", "", []),
    (" <think>hm</thin", "hm</thin", "", []),
    ("a <think> tag is not </think> thinking", "", "a <think> tag is not </think> thinking", []),
    (CALL, "", "", [F]),
    (f"\n\n{CALL}\n{OTHER}\n", "", "", [F, G]),
    (f"Sure. {CALL}", "", "Sure. ", [F]),
    (f"Sure. {CALL} Done", "", "Sure.  Done", [F]),
    (f"<think>hm</think>\n{CALL}<think>then</think>{OTHER}", "hm\nthen", "", [F, G]),
    (f"<think>hm {CALL} ok", "hm", " ok", [F]),
    (f"<think>hm{CALL}</think>\nok", "hm", "ok", [F]),
    ("<think>use <tool_call> so.</think>" + CALL, "use <tool_call> so.", "", [F]),
    (f"say <tool_call> once: {CALL}", "", "say <tool_call> once: ", [F]),
    ("<tool_call>{", "", "<tool_call>{", []),
    ("<tool_call>nonsense</tool_call> and more", "", "<tool_call>nonsense</tool_call> and more", []),
    ("<tool_call>nonsense</tool_call>" + CALL, "", "<tool_call>nonsense</tool_call>", [F]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1}}', "", "", [F]),
    ("<tool_call>", "", "<tool_call>", []),
    ("x<tool_ca", "", "x<tool_ca", []),
    ("<tool_ca", "", "<tool_ca", []),
    (
        '<tool_call>{"name": "f", "arguments": {"a": "\\"</tool_call>\\\\"}}</tool_call>',
        "",
        "",
        [("f", '{"a": "\\"</tool_call>\\\\"}')],
    ),
    ("</tool_call></think>", "", "</tool_call></think>", []),
]


@pytest.mark.parametrize(("text", "reasoning", "content", "calls"), CASES, ids=[repr(r[0]) for r in CASES])
def test_reasoning_tool_calls_and_content_are_separated_wherever_the_text_is_split(
    text, reasoning, content, calls
):
    wanted = (reasoning, content, calls, "tool_calls" if calls else "stop")
    assert parsed(read([text])) == wanted
    assert parsed(read(list(text))) == wanted
    for at in range(1, len(text)):
        assert parsed(read([text[:at], text[at:]])) == wanted


FRAGMENTS = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<thi",
        "</",
        "_call>",
        " ",
        "\n",
        "a",
        '"',
        "\\",
        CALL,
        OTHER,
    ]
)


@settings(deadline=None, max_examples=300)
@given(st.lists(FRAGMENTS, max_size=8), st.data(), st.booleans(), st.sampled_from(["stop", "length"]))
def test_the_output_is_the_same_however_the_text_is_split(fragments, data, is_thinking, reason):
    text = "".join(fragments)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parsed(read(pieces, is_thinking=is_thinking, reason=reason)) == parsed(
        read([text], is_thinking=is_thinking, reason=reason)
    )


@settings(deadline=None)
@given(st.lists(FRAGMENTS, max_size=8))
def test_without_reasoning_and_tools_no_text_is_lost(fragments):
    text = "".join(fragments)
    output = read([text], rules=None, markers=CALLING)
    assert output.text == text


LONG = {
    "content": "a <b> ",
    "whitespace": " \n",
    "whitespace between markers": "<think>hm</think>" + " \n" * 9999,
    "whitespace in reasoning": "<think>hm" + " \n" * 9999,
    "a call": '<tool_call>{"name": "f", "arguments": {"a": "' + "x" * 999 + '"}}</tool_call>',
    "a call without end": "<tool_call>" + "x" * 9999,
    "a string without end": '<tool_call>{"' + "</tool_call>" * 999,
    "backslashes": '<tool_call>"' + "\\" * 999,
    "malformed calls": "<tool_call>x</tool_call>",
    "starts of calls": "<tool_call>",
    "calls": CALL,
    "beginnings of markers": "<tool_",
}


@pytest.mark.parametrize("is_thinking", [False, True])
@pytest.mark.parametrize("unit", LONG.values(), ids=LONG)
def test_a_long_answer_takes_time_in_proportion_to_its_length(unit, is_thinking):
    """Counted in characters that the parser copies or compares, token by token of four characters."""
    touched = []
    for length in (6000, 12000):
        text = (unit * (length // len(unit) + 1))[:length]
        pieces = [CountedText(text[at : at + 4]) for at in range(0, length, 4)]
        CountedText.num_touched = 0
        output = read(pieces, is_thinking=is_thinking)
        touched.append(CountedText.num_touched)
        assert parsed(output) == parsed(read([text], is_thinking=is_thinking))
    assert touched[0] > 0
    assert touched[1] < 2.2 * touched[0]


def test_if_the_prompt_opened_the_reasoning_no_start_marker_is_needed():
    assert parsed(read(["hm</think>hello"], is_thinking=True)) == ("hm", "hello", [], "stop")


def test_a_tool_call_that_was_cut_short_is_text_with_finish_reason_length():
    text = CALL.removesuffix("}\n</tool_call>")
    assert parsed(read([text], reason="length")) == ("", text, [], "length")
    assert parsed(read([CALL + " and"], reason="length")) == ("", " and", [F], "length")


def test_without_parallel_tool_calls_the_output_ends_with_the_first_one():
    one = known("json_tools", names="", is_parallel=False)
    assert parsed(read([CALL, "\nmore ", OTHER], rules=one)) == ("", "", [F], "tool_calls")
    several = '<tool_call>[{"name": "g"}, {"name": "f"}]</tool_call>'
    assert parsed(read([several], rules=one)) == ("", "", [G], "tool_calls")


def test_without_tools_tool_calls_are_text():
    assert parsed(read([CALL], rules=None)) == ("", CALL, [], "stop")


def test_a_tool_call_format_without_an_end_marker_lasts_to_the_end():
    markers = replace(CALLING, call_start=marker("[CALLS]"), call_end=None, call_format="mistral")
    rules = known("mistral")
    assert parsed(read(['hm [CALLS][{"name": ', '"g"}]'], markers, rules=rules)) == (
        "", "hm ", [G], "tool_calls"
    )  # fmt: skip
    text = 'hm [CALLS][{"name": '
    assert parsed(read([text], markers, rules=rules)) == ("", text, [], "stop")


def test_separators_are_not_content():
    markers = replace(THINKING, separators=(marker("<|say|>"), marker("<|said|>")))
    assert parsed(read(["<think>hm</think><|say|>hello<|sa", "id|>"], markers)) == ("hm", "hello", [], "stop")


def test_each_tool_call_has_an_index_and_a_unique_id():
    output = read([CALL + OTHER])
    assert [call.index for call in output.tool_calls] == [0, 1]
    assert len({call.id for call in output.tool_calls}) == 2
    assert all(call.id.startswith("call_") and len(call.id) == 29 for call in output.tool_calls)


def test_text_is_emitted_at_once_except_for_a_possible_marker():
    parser = MarkerParser(THINKING, False, UNKNOWN)
    assert parser.read(Delta("<thi")) == []
    assert parser.read(Delta("s is")) == [TextPart("<this is")]
    assert parser.read(Delta(" good <to")) == [TextPart(" good ")]
    assert parser.read(Delta("p>")) == [TextPart("<top>")]


def test_a_tool_call_is_emitted_as_soon_as_it_is_complete():
    parser = MarkerParser(THINKING, True, UNKNOWN)
    assert parser.read(Delta("hm ")) == [ReasoningPart("hm")]
    assert parser.read(Delta("so</think>" + CALL[:-1])) == [ReasoningPart(" so")]
    (call,) = parser.read(Delta(CALL[-1]))
    assert isinstance(call, ToolCallPart)


def test_models_without_markers_get_the_plain_parser():
    assert parser_factory(CALLING, False, None) is PlainParser
    assert isinstance(parser_factory(CALLING, False, UNKNOWN)(), MarkerParser)
    assert isinstance(parser_factory(THINKING, False, None)(), MarkerParser)


@pytest.mark.parametrize(
    ("text", "is_open", "count"),
    [
        ("<think>hm</think>hi", False, 17),
        ("hm</think>hi", True, 10),
        ("hm", True, 2),
        ("", True, 0),
        ("hi", False, 0),
        ("a <think> tag</think>", False, 0),
        ("<think>hm</think>a <think> tag", False, 17),
        (f"<think>hm</think>{CALL}<think>so</think>", False, 34),
    ],
)
def test_reasoning_tokens_are_counted(text, is_open, count):
    parser = MarkerParser(THINKING, is_open, UNKNOWN)
    read_all(parser, [Delta(text)], Finished("stop", Usage(), tuple(text.encode())))
    assert parser.num_reasoning_tokens == count


def _entries(text):
    return tuple(TokenLogprob(0, piece.encode(), -1.0) for piece in text)


@given(st.data())
def test_content_has_the_logprobs_of_its_own_tokens_only(data):
    text = f"<think>hm</think>\nżółw 😀{CALL} ok"
    parser = MarkerParser(THINKING, False, UNKNOWN)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    deltas = [Delta(piece, _entries(piece)) for piece in pieces]
    output = read_all(parser, deltas, Finished("stop", Usage()))
    assert b"".join(entry.token_bytes for entry in output.logprobs).decode() == output.text == "żółw 😀 ok"


@given(st.text(st.sampled_from('a"\\{'), max_size=20), st.integers(0, 20))
@example('"\\"', 2)
def test_open_strings_are_tracked_however_the_json_is_split(text, at):
    strings = JsonStringTracker()
    strings.feed(text[:at])
    strings.feed(text[at:])
    is_open, is_escaped = False, False
    for character in text:
        is_open ^= character == '"' and not is_escaped
        is_escaped = character == "\\" and not is_escaped
    assert strings.is_open == is_open


READ = {
    "one call": (CALL, "", [F]),
    "two calls": (f"a{CALL}\n{OTHER}", "a", [F, G]),
    "another tool": (CALL.replace('"f"', '"h"'), "", [("h", '{"a": 1}')]),
    "not a call": (f"say <tool_call> once: {CALL}", "say <tool_call> once: ", [F]),
    "nonsense": ("<tool_call>nonsense</tool_call>" + CALL, "<tool_call>nonsense</tool_call>", [F]),
    "no end": (CALL.removesuffix("</tool_call>"), "", [F]),
    "a marker in a string": (CALL.replace("1", '"</tool_call>"'), "", [("f", '{"a": "</tool_call>"}')]),
}


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("text", "content", "calls"), READ.values(), ids=READ)
def test_calls_of_known_tools_are_the_same_as_others_and_in_streams(text, content, calls, is_streamed):
    rules = known("json_tools", is_streamed=is_streamed)
    for pieces in ([text], list(text), *([text[:at], text[at:]] for at in range(1, len(text)))):
        assert parsed(read(pieces, rules=rules)) == ("", content, calls, "tool_calls")


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "stream"])
def test_of_several_calls_only_the_first_counts_if_one_is_allowed(is_streamed):
    rules = known("json_tools", is_streamed=is_streamed, is_parallel=False)
    assert parsed(read(list(CALL + "\nmore " + OTHER), rules=rules)) == ("", "", [F], "tool_calls")


def test_a_streamed_call_that_is_cut_short_is_the_only_one_too_if_one_is_allowed():
    rules = known("json_tools", is_streamed=True, is_parallel=False)
    begun = '<tool_call>\n{"name": "f", "arguments": {"a": 1'
    cut = ("f", '{"a": 1')
    assert parsed(read(list(begun + CALL + OTHER), rules=rules)) == ("", "", [cut], "stop")
    thought = f"<think>hm{begun}</think>so{CALL}"
    assert parsed(read(list(thought), rules=rules)) == ("hm", "", [cut], "stop")
    several = known("json_tools", is_streamed=True)
    assert parsed(read(list(begun + CALL), rules=several)) == ("", "", [cut, F], "tool_calls")


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_a_streamed_call_that_is_cut_short_has_the_arguments_so_far(reason):
    text = '<tool_call>\n{"name": "f", "arguments": {"a": "x'
    cut = ("f", '{"a": "x')
    streamed = known("json_tools", is_streamed=True)
    assert parsed(read(list(text), rules=streamed, reason=reason)) == ("", "", [cut], reason)
    assert parsed(read(list(CALL + text), rules=streamed, reason=reason)) == ("", "", [F, cut], reason)
    output = read(list(text), rules=known("json_tools", is_streamed=False), reason=reason)
    assert parsed(output) == ("", text, [], reason)


def test_arguments_are_streamed_as_they_are_written():
    parser = MarkerParser(CALLING, False, known("json_tools", is_streamed=True))
    (start,) = (
        parser.read(Delta('<tool_call>\n{"name": "f", "arguments": '))[:1] or parser.read(Delta("{"))[:1]
    )
    assert isinstance(start, ToolCallPart)
    assert [part.text for part in parser.read(Delta('"a": "lo'))] == ['"a": "lo']
    assert [part.text for part in parser.read(Delta('ng"}}'))] == ['ng"}']


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "stream"])
def test_what_follows_calls_without_an_end_marker_is_content(is_streamed):
    markers = replace(CALLING, call_start=marker('{"name": '), call_end=None)
    rules = known("llama3", is_streamed=is_streamed)
    text = 'Look: {"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}} So.'
    assert parsed(read(list(text), markers, rules=rules)) == ("", "Look:  So.", [F, G], "tool_calls")


@pytest.mark.parametrize("unit", [CALL, "<tool_call>", '<tool_call>\n{"name": "f", "arguments": {"a": "xxxx'])
def test_reading_calls_takes_time_in_proportion_to_the_text(unit):
    touched = []
    for length in (6000, 12000):
        text = (unit + "y" * length)[:length] if "xx" in unit else (unit * length)[:length]
        CountedText.num_touched = 0
        pieces = [CountedText(text[at : at + 4]) for at in range(0, length, 4)]
        read(pieces, rules=known("json_tools", is_streamed=True))
        touched.append(CountedText.num_touched)
    assert touched[1] < 2.2 * touched[0]


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"a\n{CALL}\n{OTHER}", "a", [F, G]),
        (f"a\n\n{CALL}", "a\n", [F]),
        (f"a{CALL}", "a", [F]),
        ("a\n<tool_call>b</tool_call>\n", "a\n<tool_call>b</tool_call>\n", []),
        ("a\n", "a\n", []),
    ],
)
def test_whitespace_that_the_template_writes_before_a_call_is_dropped(text, content, calls, size):
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    output = read(pieces, markers=replace(CALLING, call_gap="\n"))
    assert parsed(output)[1:3] == (content, calls)


MUSE = Markers(
    marker("to=self<|message|>"),
    marker("<|eom|>"),
    marker("<atem:function_calls>"),
    marker("</atem:function_calls>"),
    (marker("to=user<|message|>"), marker("to=commentary<|message|>"), marker("<|eom|>"), marker("<|eot|>")),
    (marker("<|start|>"), marker("<|message|>"), marker("<|eom|>")),
    "muse_spark",
)
ATEM = (
    'assistant to=f<|message|><atem:function_calls>\n<atem:invoke name="f">\n'
    '<atem:parameter name="a">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
)


# Without <|start|>, which is a control token and no text.
@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"),
    [
        (" to=user<|message|>Hello", "", "Hello", []),
        (" to=self<|message|>hm<|eom|>assistant to=user<|message|>Hello<|eot|>", "hm", "Hello", []),
        (f" to=self<|message|>hm<|eom|>{ATEM}", "hm", "", [F]),
        (f" to=commentary<|message|>Look.<|eom|>{ATEM}<|eom|>{ATEM}<|eot|>", "", "Look.", [F, F]),
        (f"to=self<|message|>a<|eom|>assistant to=self<|message|>b<|eom|>{ATEM}", "a\nb", "", [F]),
        ("assistants are here", "", "assistants are here", []),
        ("to=nobody" * 40, "", "to=nobody" * 40, []),
        ("assistant", "", "assistant", []),
    ],
)
def test_messages_of_muse_spark_go_where_their_headers_say(text, reasoning, content, calls):
    layout = find_format(MUSE)
    schemas = {"f": {"properties": {"a": {"type": "integer"}}}}
    rules = ToolCallRules(make_reader=partial(make_reader, layout, schemas))
    for pieces in ([text], list(text), *([text[:at], text[at:]] for at in range(1, len(text)))):
        output = read(pieces, MUSE, rules=rules)
        finish = "tool_calls" if calls else "stop"
        assert parsed(output) == (reasoning, content, calls, finish), pieces


@pytest.mark.parametrize("is_thinking", [False, True], ids=["closed", "open"])
@pytest.mark.parametrize(
    ("gap", "text", "reasoning"),
    [
        (None, "\n hm \n", "hm"),
        (("\n", "\n"), "\nhm\n", "hm"),
        (("\n", "\n"), "hm", "hm"),
        (("\n", "\n"), "\n\n a\n\nb \n\n", "\n a\n\nb \n"),
        (("", ""), "\nhm\n\n", "\nhm\n\n"),
        (("", ""), "\n \n", ""),
        (("", ""), "", ""),
    ],
)
def test_whitespace_around_a_thought_stays_if_the_template_does_not_write_it(
    gap, text, reasoning, is_thinking
):
    whole = ("" if is_thinking else "<think>") + text + "</think>\n\nyes"
    for size in (1, 3, 99):
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        output = read(pieces, replace(THINKING, thought_gap=gap), is_thinking)
        assert parsed(output) == (reasoning, "yes", [], "stop")
