"""What the model is shown of parts, and the page that says it."""

import re
from pathlib import Path

import pytest

from reprise.server.errors import BadRequestError
from reprise.server.requests.fields import Notes
from reprise.server.requests.messages import (
    LEFT_OUT,
    MEDIA,
    TEXTS,
    UNREADABLE,
    arguments_of,
    cleaned,
    from_chats,
    parts_of,
    settle,
)

GUIDE = Path(__file__).parents[3] / "docs" / "guide.md"


def test_the_guide_says_what_the_tables_say():
    said = GUIDE.read_text().partition("<!-- parts -->")[2].partition("<!-- end -->")[0]
    named = set(re.findall(r"`([a-z0-9_]+)`", said))
    assert named == {*TEXTS, *MEDIA, *LEFT_OUT, *UNREADABLE}


@pytest.mark.parametrize("kind", sorted(MEDIA))
def test_media_are_shown_as_the_same_placeholder_at_every_turn(kind):
    notes = Notes()
    (shown,) = parts_of([{"type": kind, "id": "f1", "data": "AAAA"}], "at", notes)
    assert str(shown) == f"[{MEDIA[kind]}: this model reads text]"
    # Whether an image is shown as text is known once the model is, and a document once it is read.
    assert list(notes.paths) == ([] if MEDIA[kind] in ("image", "document") else ["at[0]"])


def test_objects_are_shown_down_to_a_depth():
    deep = {}
    for _ in range(150):
        deep = {"a": deep, "b": 1}
    shown = cleaned(deep)
    for _ in range(19):
        shown = shown["a"]
    assert shown == {"b": 1}


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ('{"a": "b", "c": "de', {"a": "b", "c": "de"}),
        ("", {}),
        (None, {}),
        ("[1]", {"input": "[1]"}),
        ("[" * 9000, {"input": "[" * 9000}),
    ],
)
def test_arguments_are_an_object_however_they_were_sent(given, arguments):
    assert arguments_of(given, "at", Notes()) == arguments


def test_a_result_without_a_call_is_the_users():
    notes = Notes()
    (user,) = settle(
        from_chats([{"role": "tool", "tool_call_id": "c", "content": "x"}], "messages", notes), notes
    )
    assert (user.role, user.text) == ("user", "<tool_response>\nx\n</tool_response>")
    assert list(notes.paths) == ["messages[0]"]


def test_calls_that_are_numbered_anew_in_each_turn_keep_their_own_results():
    def called(*ids):
        calls = [{"id": one, "type": "function", "function": {"name": "f", "arguments": "{}"}} for one in ids]
        return {"role": "assistant", "content": None, "tool_calls": calls}

    def answered(one, text):
        return {"role": "tool", "tool_call_id": one, "content": text}

    said = [
        *(called("call_0", "call_1"), answered("call_0", "a"), answered("call_1", "b")),
        *(called("call_0"), answered("call_0", "c")),
        *(called("x", "x"), answered("x", "d"), answered("x", "e")),
        *(called("call_0"), called("call_0"), answered("call_0", "f")),
    ]
    settled = settle(from_chats(said, "messages", Notes()), Notes())
    ids = [call.id for one in settled for call in one.calls]
    assert len(set(ids)) == len(ids) == 7
    assert ids[:2] == ["call_0", "call_1"]
    results = {one.call_id: one.text for one in settled if one.role == "tool"}
    assert [results.get(one) for one in ids] == ["a", "b", "c", "d", "e", None, "f"]
    # Later turns do not change what was shown of earlier ones.
    assert settle(from_chats(said[:6], "messages", Notes()), Notes()) == settled[:6]


def test_notes_are_bounded():
    notes = Notes()
    for index in range(5000):
        notes.left_out(f"messages[{index}]")
    assert len(notes.paths) == 1000
    with pytest.raises(BadRequestError):
        Notes(refuses=True).left_out("x")
