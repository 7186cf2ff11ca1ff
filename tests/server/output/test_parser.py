"""What the model wrote is told apart rightly, and alike however its text is dealt out."""

import json
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.model.tool_calls import read_calls
from engine.request import Delta, Finished, TokenLogprob, Usage
from server.output.parser import MarkerParser, ToolCallRules, parser_factory
from server.output.partial_text import JsonStringTracker
from server.output.parts import ChoiceOutput, PlainParser, ReasoningPart, TextPart, ToolCallPart
from tests.server.fake_engine import CALLING, THINKING, marker

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
F, G = ("f", '{"a": 1}'), ("g", "{}")


def parse(text):
    return read_calls(lambda text, _: json.loads(text), text, [])


def read(pieces, markers=THINKING, is_thinking=False, rules=ToolCallRules(parse), reason="stop"):  # noqa: B008
    reader = MarkerParser(markers, is_thinking, rules)
    parts = [part for piece in pieces for part in reader.read(Delta(piece))]
    output = ChoiceOutput()
    for part in parts + reader.end(Finished(reason, Usage())):
        output.add(part)
    return output


def told(output):
    return (
        output.reasoning,
        output.text,
        [(call.name, call.arguments) for call in output.tool_calls],
        output.finish_reason,
    )


READINGS: list[tuple[str, str, str, list[tuple[str, str]]]] = [
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


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"), READINGS, ids=[repr(r[0]) for r in READINGS]
)
def test_thinking_calls_and_content_are_told_apart_wherever_the_text_is_cut(text, reasoning, content, calls):
    wanted = (reasoning, content, calls, "tool_calls" if calls else "stop")
    assert told(read([text])) == wanted
    assert told(read(list(text))) == wanted
    for at in range(1, len(text)):
        assert told(read([text[:at], text[at:]])) == wanted


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
def test_however_text_is_dealt_out_the_parts_are_the_same(fragments, data, is_thinking, reason):
    text = "".join(fragments)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert told(read(pieces, is_thinking=is_thinking, reason=reason)) == told(
        read([text], is_thinking=is_thinking, reason=reason)
    )


@settings(deadline=None)
@given(st.lists(FRAGMENTS, max_size=8))
def test_without_markers_and_blanks_nothing_of_the_text_is_lost(fragments):
    text = "".join(fragments)
    output = read([text], rules=None, markers=CALLING)
    assert output.text == text


def test_a_prompt_that_began_the_thinking_needs_no_marker():
    assert told(read(["hm</think>hello"], is_thinking=True)) == ("hm", "hello", [], "stop")


def test_a_call_that_was_cut_short_is_text_and_the_finish_says_so():
    text = CALL.removesuffix("</tool_call>")
    assert told(read([text], reason="length")) == ("", text, [], "length")
    assert told(read([CALL + " and"], reason="length")) == ("", " and", [F], "length")


def test_when_one_call_is_asked_for_the_answer_ends_with_it():
    one = ToolCallRules(parse, is_parallel=False)
    assert told(read([CALL, "\nmore ", OTHER], rules=one)) == ("", "", [F], "tool_calls")
    several = ToolCallRules(lambda _: parse('{"name": "g"}') * 2, is_parallel=False)
    assert told(read([CALL], rules=several)) == ("", "", [G], "tool_calls")


def test_without_tools_calls_are_text():
    assert told(read([CALL], rules=None)) == ("", CALL, [], "stop")


def test_a_form_without_an_end_lasts_to_the_end():
    markers = replace(CALLING, call_start=marker("[CALLS]"), call_end=None, call_format="mistral")
    assert told(read(['hm [CALLS]{"name": ', '"g"}'], markers)) == ("", "hm ", [G], "tool_calls")
    assert told(read(['hm [CALLS]{"name": '], markers)) == ("", 'hm [CALLS]{"name": ', [], "stop")


def test_separators_are_no_content():
    markers = replace(THINKING, separators=(marker("<|say|>"), marker("<|said|>")))
    assert told(read(["<think>hm</think><|say|>hello<|sa", "id|>"], markers)) == ("hm", "hello", [], "stop")


def test_each_call_has_its_place_and_an_id_of_its_own():
    output = read([CALL + OTHER])
    assert [call.index for call in output.tool_calls] == [0, 1]
    assert len({call.id for call in output.tool_calls}) == 2
    assert all(call.id.startswith("call_") and len(call.id) == 29 for call in output.tool_calls)


def test_text_is_told_at_once_but_for_what_may_begin_a_marker():
    reader = MarkerParser(THINKING, False, ToolCallRules(parse))
    assert reader.read(Delta("<thi")) == []
    assert reader.read(Delta("s is")) == [TextPart("<this is")]
    assert reader.read(Delta(" good <to")) == [TextPart(" good ")]
    assert reader.read(Delta("p>")) == [TextPart("<top>")]


def test_a_call_is_told_as_soon_as_it_is_whole():
    reader = MarkerParser(THINKING, True, ToolCallRules(parse))
    assert reader.read(Delta("hm ")) == [ReasoningPart("hm")]
    assert reader.read(Delta("so</think>" + CALL[:-1])) == [ReasoningPart(" so")]
    (call,) = reader.read(Delta(CALL[-1]))
    assert isinstance(call, ToolCallPart)


def test_models_that_mark_nothing_are_read_plainly():
    assert parser_factory(CALLING, False, None) is PlainParser
    assert isinstance(parser_factory(CALLING, False, ToolCallRules(parse))(), MarkerParser)
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
def test_tokens_of_thinking_are_counted(text, is_open, count):
    reader = MarkerParser(THINKING, is_open, ToolCallRules(parse))
    reader.read(Delta(text))
    reader.end(Finished("stop", Usage(), tuple(text.encode())))
    assert reader.num_reasoning_tokens == count


def _entries(text):
    return tuple(TokenLogprob(0, piece.encode(), -1.0) for piece in text)


@given(st.data())
def test_content_brings_the_log_probabilities_of_its_own_tokens(data):
    text = f"<think>hm</think>\nżółw 😀{CALL} ok"
    reader = MarkerParser(THINKING, False, ToolCallRules(parse))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    parts = []
    for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True):
        parts += reader.read(Delta(text[a:b], _entries(text[a:b])))
    output = ChoiceOutput()
    for part in [*parts, *reader.end(Finished("stop", Usage()))]:
        output.add(part)
    assert b"".join(entry.piece for entry in output.logprobs).decode() == output.text == "żółw 😀 ok"


@given(st.text(st.sampled_from('a"\\{'), max_size=20), st.integers(0, 20))
@example('"\\"', 2)
def test_open_strings_are_known_however_the_json_is_dealt_out(text, at):
    strings = JsonStringTracker()
    strings.feed(text[:at])
    strings.feed(text[at:])
    is_open, is_escaped = False, False
    for character in text:
        is_open ^= character == '"' and not is_escaped
        is_escaped = character == "\\" and not is_escaped
    assert strings.is_open == is_open
