"""Views of a conversation: of which texts, in which form, kept for whom, and within which bounds."""

import json
from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from reprise.engine.interface.request import View
from reprise.server.prompt import views as making
from reprise.server.prompt.views import (
    AS_IT_IS,
    AS_JSON,
    PROBED,
    ArgumentForm,
    Shown,
    ViewMaker,
    probe_arguments,
)
from tests.server.fake_engine import CALLING, FakeTokenizer

Json = dict[str, Any]
CODE = 'def area(w, h):\n    """The area."""\n    return w * h  # ü\n'
NUMBERED = "".join(f"{at:6}→{line}\n" for at, line in enumerate(CODE.splitlines(), 1))


def tool(name: str, *keys: str) -> Json:
    parameters = {
        "type": "object",
        "properties": {key: {"type": "string"} for key in keys},
        "required": [*keys],
    }
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


EDIT = tool("edit", "path", "oldText", "newText")


class JsonTokenizer(FakeTokenizer):
    """Bytes, and a template that writes calls as JSON."""

    def render_chat(self, messages: list[Json], *_: object, **__: object) -> list[int]:
        return self.encode("".join(map(self.text, messages)))

    def text(self, message: Json) -> str:
        calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls", ())]
        return message.get("content", "") + "".join(f"<tool_call>{call}</tool_call>" for call in calls)


class RawTokenizer(JsonTokenizer):
    """The same, but arguments stand between tags."""

    def text(self, message: Json) -> str:
        text: str = message.get("content", "")
        for call in message.get("tool_calls", ()):
            arguments = call["function"]["arguments"].items()
            inner = "".join(f"<{key}>\n{value}\n</{key}>" for key, value in arguments)
            text += f"<function={call['function']['name']}>{inner}</function>"
        return text


def maker_of(tokenizer: FakeTokenizer, max_bytes: int = 1 << 20) -> ViewMaker:
    return ViewMaker(SimpleNamespace(tokenizer=tokenizer), max_bytes)


def make(maker: ViewMaker, *messages: Json, tools: tuple[Json, ...] = (), owner: str = "") -> list[View]:
    views: list[View] = []
    deque(maker.make(messages, tools, owner, views), maxlen=0)
    return views


def texts(views: list[View]) -> list[str]:
    return [bytes([*view]).decode() for view in views]


def result(text: str) -> Json:
    return {"role": "tool", "tool_call_id": "c", "content": text}


def escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def test_a_numbered_result_has_a_view_without_numbers_and_one_as_arguments_have_it() -> None:
    views = texts(make(maker_of(JsonTokenizer()), result(NUMBERED), tools=(EDIT,)))
    assert views == [CODE, escaped(CODE)]


def test_where_arguments_have_no_escapes_a_plain_result_has_no_view() -> None:
    maker = maker_of(RawTokenizer())
    assert texts(make(maker, result(CODE), tools=(EDIT,))) == []
    assert texts(make(maker, result(NUMBERED), tools=(EDIT,))) == [CODE]


def test_without_tools_there_are_no_escapes() -> None:
    assert texts(make(maker_of(JsonTokenizer()), {"role": "user", "content": NUMBERED})) == [CODE]


def test_what_a_call_wrote_has_a_view_as_results_have_it() -> None:
    function = {"name": "write", "arguments": {"path": "a.py", "content": CODE}}
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}
    assert texts(make(maker_of(JsonTokenizer()), call, tools=(EDIT,))) == [CODE]
    assert texts(make(maker_of(RawTokenizer()), call, tools=(EDIT,))) == []


def test_the_newest_text_comes_first_and_system_texts_have_no_view() -> None:
    system = {"role": "system", "content": NUMBERED + "no\n"}
    old, new = result(NUMBERED), result(NUMBERED.replace("area", "volume"))
    views = texts(make(maker_of(RawTokenizer()), system, old, new, tools=(EDIT,)))
    assert views == [CODE.replace("area", "volume"), CODE]


@pytest.mark.parametrize("unit", ["a", '"', "a-1-", "\u6f22", "1:"], ids=ascii)
def test_a_line_of_any_length_is_made_in_slices(unit: str) -> None:
    line = unit * (10 * making.MAX_SLICE_CHARACTERS // len(unit))
    slices = maker_of(JsonTokenizer()).make([result(f"{line}\n{NUMBERED}")], [EDIT], "", [])
    assert sum(1 for _ in slices) >= 10


def test_a_long_text_is_made_in_slices_and_in_one_piece() -> None:
    code = "".join(f"    value_{at} = other_{at} or next_{at}\n" for at in range(2000))
    views: list[View] = []
    slices = maker_of(JsonTokenizer()).make([result(code)], [EDIT], "", views)
    assert sum(1 for _ in slices) > len(code) // making.SLICE_CHARACTERS
    assert texts(views) == [escaped(code)]


def test_a_slice_reads_few_lines_however_short_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count them: each takes some microseconds in which no other thread runs."""
    read, num_lines = making.read_shapes, list[int]()

    def count(text: str) -> Shown:
        num_lines.append(text.count("\n"))
        return read(text)

    monkeypatch.setattr(making, "read_shapes", count)
    views: list[View] = []
    slices = maker_of(JsonTokenizer()).make([{"role": "tool", "content": "7\n" * 3000}], [EDIT], "", views)
    for _ in slices:
        assert sum(num_lines) <= 100
        num_lines.clear()
    assert "7\\n" * 3000 in texts(views)


def test_views_are_kept_for_their_owner_alone() -> None:
    maker = maker_of(RawTokenizer())
    first = make(maker, result(NUMBERED), tools=(EDIT,), owner="anna")
    views: list[View] = []
    slices = maker.make([result(NUMBERED)], [EDIT], "anna", views)
    assert next(slices, None) is None
    assert views == first
    views = []
    next(maker.make([result(NUMBERED)], [EDIT], "ben", views))
    assert views == []


def test_what_is_kept_is_bounded_and_what_was_used_last_stays() -> None:
    maker = maker_of(RawTokenizer(), 4 * 3000)
    used = result(NUMBERED.replace("area", "used"))
    for at in range(100):
        make(maker, result(NUMBERED.replace("area", f"name_{at}")))
        make(maker, used)
        assert maker.kept_bytes <= 4 * 3000
    views: list[View] = []
    next(maker.make([used], [], "", views), None)
    assert texts(views) == [CODE.replace("area", "used")]


def test_texts_without_views_are_kept_within_the_same_bound() -> None:
    maker = maker_of(RawTokenizer(), 1000)
    for at in range(100):
        make(maker, result(CODE.replace("area", f"name_{at}")))
    assert 0 < maker.kept_bytes <= 1000


def test_the_views_of_a_request_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "MAX_TOKENS", 1000)
    many = [result(NUMBERED.replace("area", f"name_{at}")) for at in range(100)]
    maker = maker_of(RawTokenizer())
    for _ in range(2):
        views = texts(make(maker, *many))
        assert 0 < sum(map(len, views)) < 1000
        assert "name_99" in views[0]


def test_a_new_result_has_views_also_where_those_of_older_ones_fill_the_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(making, "MAX_TOKENS", 1000)
    many = [result(NUMBERED.replace("area", f"name_{at}")) for at in range(100)]
    maker = maker_of(RawTokenizer())
    for num_results in range(20, 100):
        views = texts(make(maker, *many[:num_results]))
        assert any(f"name_{num_results - 1}(" in view for view in views)
        assert 500 < sum(map(len, views)) < 1000


@pytest.mark.parametrize("is_ascii", [False, True])
def test_the_form_of_arguments_is_what_the_template_writes(is_ascii: bool) -> None:
    def render(messages: list[Json]) -> str:
        return json.dumps(messages[-1]["tool_calls"], ensure_ascii=is_ascii).replace("<", "\\u003c")

    form = probe_arguments(render)
    assert form is not None
    text = PROBED + "ü😀"
    assert form.write(text) == json.dumps(text, ensure_ascii=is_ascii)[1:-1].replace("<", "\\u003c")


def test_a_template_that_shows_no_arguments_has_no_form() -> None:
    assert probe_arguments(lambda _: "nothing") is None


def test_text_as_json_can_be_read_as_json() -> None:
    assert json.loads(f'"{AS_JSON.write(CODE)}"') == CODE
    assert AS_JSON.has_escapes
    assert not AS_IT_IS.has_escapes
    assert ArgumentForm(is_ascii=True).write("aü😀") == "a\\u00fc\\ud83d\\ude00"


def test_a_model_without_calls_has_no_escapes() -> None:
    tokenizer = JsonTokenizer()
    tokenizer.markers = replace(CALLING, call_start=None, call_end=None, call_format="")
    assert texts(make(maker_of(tokenizer), result(CODE), tools=(EDIT,))) == []
