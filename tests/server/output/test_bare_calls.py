"""A call that lacks the marker before it is a call, if it begins a line and names a tool."""

from dataclasses import replace
from functools import partial

import pytest

from reprise.engine.interface.events import Delta
from reprise.server.output.chat_parser import MarkerParser
from reprise.server.output.parser_base import ToolCallRules
from reprise.server.output.parts import CallArgumentsPart, ToolCallPart
from reprise.server.tools.formats import find_format
from reprise.server.tools.readers import bare_calls, make_reader
from tests.server.fake_engine import CALLING, THINKING, says
from tests.server.output.test_chat_parser import parsed, read

QWEN = replace(THINKING, call_format="qwen3_coder")
SCHEMAS = {"f": {"properties": {"a": {"type": "string"}}}, "g": {}}
CALL = "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>"
OTHER = "<function=g>\n</function>"
F, G = ("f", '{"a": "1"}'), ("g", "{}")


def rules_of(names=("f", "g"), *, is_streamed=True, is_parallel=True):
    reader = partial(make_reader, find_format(QWEN), SCHEMAS)
    bare = bare_calls(QWEN, names)
    return ToolCallRules(is_parallel, reader, is_streamed, bare_calls=bare)


CASES = {
    "alone": (CALL, "", "", [F]),
    "with the end of a section": (f"{CALL}\n</tool_call>", "", "", [F]),
    "after text": (f"I look.\n\n{CALL}\n</tool_call>", "", "I look.\n", [F]),
    "after thinking": (f"<think>hm</think>\n\n{CALL}", "hm", "", [F]),
    "two": (f"{CALL}\n</tool_call>\n{OTHER}\n</tool_call>", "", "", [F, G]),
    "the second only": (f"<tool_call>\n{CALL}\n</tool_call>\n{CALL}", "", "", [F, F]),
    "the first only": (f"{CALL}\n<tool_call>\n{OTHER}\n</tool_call>", "", "", [F, G]),
    "then text": (f"{CALL}\nDone.", "", "\nDone.", [F]),
    "the end in a value": (CALL.replace("1", "</function>"), "", "", [("f", '{"a": "</function>"}')]),
    "no line break": ("<function=g></function>", "", "", [G]),
    "another tool": (CALL.replace("=f>", "=h>"), "", CALL.replace("=f>", "=h>"), []),
    "within a line": (f"Write {CALL}", "", f"Write {CALL}", []),
    "indented": (f"So:\n    {CALL}", "", f"So:\n    {CALL}", []),
    "a mention": ("\n<function=f>\nis one", "", "\n<function=f>\nis one", []),
    "a mention after text": ("See\n<function=f> there", "", "See\n<function=f> there", []),
    "while thinking": (f"<think>\n{CALL}\n</think>\nok", CALL, "ok", []),
}


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("text", "reasoning", "content", "calls"), CASES.values(), ids=CASES)
def test_a_call_without_its_marker_is_a_call_wherever_the_text_is_split(
    text, reasoning, content, calls, is_streamed
):
    rules = rules_of(is_streamed=is_streamed)
    for pieces in ([text], list(text), *([text[:at], text[at:]] for at in range(1, len(text)))):
        wanted = (reasoning, content, calls, "tool_calls" if calls else "stop")
        assert parsed(read(pieces, QWEN, rules=rules)) == wanted, pieces


def test_its_arguments_are_streamed_as_they_are_written():
    parser = MarkerParser(QWEN, False, rules_of())
    (start, opening) = parser.read(Delta("Now.\n<function=f>\n<parameter=a>"))[1:3]
    assert isinstance(start, ToolCallPart)
    assert isinstance(opening, CallArgumentsPart)
    assert [part.text for part in parser.read(Delta("\nlo"))][-1] == "lo"
    assert [part.text for part in parser.read(Delta("ng"))] == ["ng"]


def test_what_is_cut_short_or_no_call_after_all_stays_text():
    broken = CALL.replace("</function>", "") + "and more\n</tool_call>"
    rules = rules_of(is_streamed=False)
    assert parsed(read(list(broken), QWEN, rules=rules)) == ("", broken, [], "stop")
    cut = f"So\n{CALL[:-20]}"
    assert parsed(read(list(cut), QWEN, rules=rules, reason="length")) == ("", cut, [], "length")


def test_only_the_first_counts_if_one_is_allowed():
    text = f"{CALL}\n{OTHER}"
    assert parsed(read(list(text), QWEN, rules=rules_of(is_parallel=False)))[2] == [F]


def test_other_formats_have_no_such_calls():
    assert bare_calls(CALLING, ["f"]) is None
    assert bare_calls(QWEN, []) is None


@pytest.mark.parametrize(("strict", "is_call"), [(False, True), (True, False)])
async def test_a_call_that_has_to_be_enforced_needs_its_marker(client, engine, strict, is_call):
    engine.tokenizer.markers, engine.script = QWEN, says(*CALL)
    schema = {**SCHEMAS["f"], "type": "object", "additionalProperties": False, "required": ["a"]}
    function = {"name": "f", "parameters": schema, "strict": strict}
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": function}],
    }
    (choice,) = (await client.post("/v1/chat/completions", json=body)).json()["choices"]
    assert (choice["finish_reason"] == "tool_calls") == is_call
    assert (choice["message"]["content"] == CALL) != is_call
