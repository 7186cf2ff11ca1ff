import json

import pytest

from reprise.server.openai_api.chat import ChatFormat, CompletionFormat, OpenAIPresenter, envelope
from reprise.server.output.parts import EndPart, TextPart
from reprise.server.output.presenter import ResponseHead
from tests.server.openai_shapes import stream_data

HEAD = ResponseHead(id="1", created=5, model='a "model"', system_fingerprint="fp_1", service_tier="default")
TEXTS = ["a", 'say "hi"\n', "\\", "\x00\x1f\x7f", "é ✓ 🙂", "\u2028\u2029\x85", "</script>", " " * 5000]


@pytest.mark.parametrize("text", TEXTS, ids=repr)
@pytest.mark.parametrize("wants_usage", [True, False])
@pytest.mark.parametrize("response_format", [ChatFormat(), CompletionFormat()])
def test_a_text_chunk_equals_the_dump_of_the_typed_model(response_format, wants_usage, text):
    writer = OpenAIPresenter(HEAD, response_format, num_choices=3, wants_usage=wants_usage)
    for index in range(3):
        usage = {"usage": None} if wants_usage else {}
        choices = [response_format.chunk_choice(index, TextPart(text))]
        whole = envelope(HEAD, response_format, response_format.chunk_object, choices=choices, **usage)
        assert writer.format_text(index, text) == b"data: " + whole + b"\n\n"


@pytest.mark.parametrize("text", TEXTS, ids=repr)
def test_a_frame_is_one_line_of_json(text):
    frame = OpenAIPresenter(HEAD, ChatFormat(), 1, wants_usage=False).format_text(0, text)
    data, *rest = frame.decode().split("\n")
    assert rest == ["", ""]
    assert "\r" not in data
    assert json.loads(data.removeprefix("data: "))["choices"][0]["delta"]["content"] == text


def test_text_of_one_choice_that_queued_up_becomes_one_chunk():
    presenter = OpenAIPresenter(HEAD, CompletionFormat(), num_choices=2, wants_usage=False)
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
