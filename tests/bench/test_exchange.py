"""However a response was cut into pieces, and whatever is wrong with it, its stream is read."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.bench.serving.client import Stream

TEXTS = [
    b'data: {"choices": [{"delta": {"content": "%s"}}]}' % one for one in (b"one", "\N{SNOWMAN} two".encode())
]
USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 7}}'
LINES = [b": keep-alive 1/2", b'data: {"choices": []}', *TEXTS, b"", USAGE, b"data: [DONE]", b""]


def parsed(*pieces, status=200, error=None):
    stream = Stream(0.0, 1000.0, status, [(float(at), piece) for at, piece in enumerate(pieces)], error)
    stream.parse()
    return stream


@given(st.sampled_from([b"\n", b"\r\n"]), st.lists(st.integers(0, 300)))
def test_an_answer_is_the_same_however_the_bytes_were_cut(end, cuts):
    data = b"".join(line + end for line in LINES)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    stream = parsed(*(data[a:b] for a, b in pairwise(edges)))
    assert (stream.error, [text for _, text in stream.chunks]) == (None, ["one", "\N{SNOWMAN} two"])
    assert stream.usage == {"completion_tokens": 7}
    assert stream.ended <= len(edges)


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([b"data: {}", b"data: [DONE]"], None),
        ([b'data: {"choices": null, "usage": null}', b"data: [DONE]"], None),
        ([b"data: {}"], "the stream ended without [DONE]"),
        ([], "the stream ended without [DONE]"),
        ([b'data: {"error": {"code": 5}}', b"data: [DONE]"], "error in the stream: {'code': 5}"),
        ([b'data: {"error": "no room"}'], "error in the stream: no room"),
    ],
)
def test_what_went_wrong_in_a_stream_is_told(lines, error):
    assert parsed(*(line + b"\n" for line in lines)).error == error


@pytest.mark.parametrize(
    "nonsense",
    [
        b"nonsense",
        b"[1, 2]",
        b'{"choices": [7]}',
        b'{"choices": 7}',
        b'{"usage": [3]}',
        b'{"choices": [{"delta": "text"}]}',
        b'{"choices": [{"delta": {"content": 7}}]}',
        b"\xff\xfe",
    ],
)
def test_nonsense_is_an_error_that_shows_it(nonsense):
    error = parsed(b"data: " + nonsense + b"\ndata: [DONE]\n").error
    assert error == f"not a chunk of a chat completion: {nonsense!r}"


def test_an_error_status_is_told_with_its_body():
    assert parsed(b'{"error": ', b'"busy"}', status=503).error == 'status 503: {"error": "busy"}'


def test_a_broken_connection_is_told():
    assert parsed(b"data: {}\n", error="connection lost: reset").error == "connection lost: reset"


def test_reasoning_and_tool_calls_are_text_too():
    deltas = [
        b'{"reasoning_content": "hm"}',
        b'{"reasoning": "so"}',
        b'{"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}',
        b'{"role": "assistant", "content": ""}',
    ]
    stream = parsed(*(b'data: {"choices": [{"delta": ' + delta + b"}]}\n" for delta in deltas))
    assert [text for _, text in stream.chunks] == ["hm", "so", "f{}"]
