from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.serving.client import Transcript, read_answer

TEXTS = [
    b'data: {"choices": [{"delta": {"content": "%s"}}]}' % one for one in (b"one", "\N{SNOWMAN} two".encode())
]
LINES = [b": keep-alive 1/2", b'data: {"choices": []}', *TEXTS, b"", b"data: [DONE]", b""]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def chunked(body, size):
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    coded = b"".join(b"%x;note=1\r\n%s\r\n" % (len(part), part) for part in parts)
    return HEAD + b"transfer-encoding: Chunked\r\n\r\n" + coded + b"0\r\n\r\n"


@given(st.sampled_from([b"\n", b"\r\n"]), st.integers(0, 60), st.lists(st.integers(0, 300)))
def test_an_answer_is_the_same_however_the_bytes_were_cut(end, size, cuts):
    body = b"".join(line + end for line in LINES)
    data = chunked(body, size) if size else HEAD + b"\r\n" + body
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    reads = tuple((float(at), data[a:b]) for at, (a, b) in enumerate(pairwise(edges)))
    answer = read_answer(Transcript(0.0, 1000.0, reads))
    assert (answer.error, [text for _, text in answer.chunks]) == (None, ["one", "\N{SNOWMAN} two"])
    assert answer.ended <= len(reads)


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-server\r\n\r\n", b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"]
)
def test_what_is_not_http_is_an_error_that_shows_it(data):
    error = read_answer(Transcript(0.0, 1.0, ((0.5, data),))).error
    assert error.startswith("the response is not HTTP")
    assert "SSH-2.0" in error or "zz" in error


def answered(*lines, head=HEAD, fault=None):
    data = head + b"\r\n" + b"".join(line + b"\n" for line in lines)
    return read_answer(Transcript(0.0, 1.0, ((0.5, data),), fault))


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([b"data: {}", b"data: [DONE]"], None),
        ([b'data: {"choices": null, "usage": null}', b"data: [DONE]"], None),
        ([b"data: {}"], "the stream ended without [DONE]"),
        ([b"data: nonsense", b"data: [DONE]"], "a chunk is not a JSON object: b'nonsense'"),
        ([b"data: []", b"data: [DONE]"], "a chunk is not a JSON object: b'[]'"),
        ([b'data: {"error": {"message": "no room"}}', b"data: [DONE]"], "error in the stream: no room"),
        ([b'data: {"error": "no room"}'], "error in the stream: no room"),
    ],
)
def test_what_went_wrong_in_a_stream_is_told(lines, error):
    assert answered(*lines).error == error


def test_a_broken_connection_is_told_and_an_empty_one_too():
    assert answered(b"data: {}", fault="connection lost: reset").error == "connection lost: reset"
    assert read_answer(Transcript(0.0, 1.0, ())).error == "the connection closed without an answer"


@pytest.mark.parametrize(
    ("body", "message"),
    [(b'{"error": {"message": "busy"}}', "busy"), (b'{"error": "busy"}', "busy"), (b"<html>", "<html>")],
)
def test_an_error_status_is_told_with_its_message(body, message):
    head = b"HTTP/1.0 503 Unavailable\r\n"
    assert answered(body, head=head).error == f"status 503: {message}"


def test_reasoning_and_tool_calls_are_text_too():
    deltas = [
        b'{"reasoning_content": "hm"}',
        b'{"reasoning": "so"}',
        b'{"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}',
        b'{"role": "assistant", "content": ""}',
    ]
    lines = [b'data: {"choices": [{"delta": ' + delta + b"}]}" for delta in deltas]
    assert [text for _, text in answered(*lines, b"data: [DONE]").chunks] == ["hm", "so", "f{}"]
