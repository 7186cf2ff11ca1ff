import json

import pytest

from reprise.server.openai_api.chat import ChatPresenter, CompletionPresenter
from reprise.server.output.parts import EndPart, ReportPart, TextPart
from reprise.server.output.presenter import ResponseHead
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.completions import CompletionRequest
from reprise.server.requests.fields import validate
from tests.server.openai_shapes import stream_data

HEAD = ResponseHead(id="1", created=5, model='a "model"', system_fingerprint="fp_1")
TEXTS = ["a", 'say "hi"\n', "\\", "\x00\x1f\x7f", "é ✓ 🙂", "\u2028\u2029\x85", "</script>", " " * 5000]


def chat_presenter(**fields):
    return ChatPresenter(
        HEAD, validate({"messages": [{"role": "user", "content": "a"}], **fields}, ChatRequest)
    )


def completion_presenter(**fields):
    return CompletionPresenter(HEAD, validate({"prompt": "a", **fields}, CompletionRequest))


@pytest.mark.parametrize("text", TEXTS, ids=repr)
@pytest.mark.parametrize("wants_usage", [True, False])
@pytest.mark.parametrize("make", [chat_presenter, completion_presenter])
def test_a_text_chunk_equals_a_chunk_that_is_serialized_as_a_whole(make, wants_usage, text):
    presenter = make(n=3, stream=True, stream_options={"include_usage": wants_usage})
    for index in range(3):
        part = (index, TextPart(text))
        # What reports something is serialized anew.
        assert presenter.format_parts([part]) == presenter.format_parts([part, (index, ReportPart())])


@pytest.mark.parametrize("text", TEXTS, ids=repr)
def test_a_frame_is_one_line_of_json(text):
    frame = chat_presenter().format_parts([(0, TextPart(text))])
    data, *rest = frame.decode().split("\n")
    assert rest == ["", ""]
    assert "\r" not in data
    assert json.loads(data.removeprefix("data: "))["choices"][0]["delta"]["content"] == text


def test_text_of_one_choice_that_queued_up_becomes_one_chunk():
    presenter = completion_presenter(n=2)
    events = [
        (0, TextPart("a")),
        (1, TextPart("x")),
        (0, TextPart("b")),
        (0, EndPart("stop")),
        (1, TextPart("y")),
    ]
    chunks = stream_data(presenter.format_parts(events).decode())
    assert len(chunks) == 3
    assert '"ab"' in chunks[0]
    assert '"stop"' in chunks[1]
    assert '"xy"' in chunks[2]
