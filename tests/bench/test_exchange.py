"""Whatever is wrong with a response, its lines are read."""

import pytest

from reprise.bench.peers import Answer, arrivals_of, read_answer

CHUNK = 'data: {"choices": [{"delta": %s}]}'
DONE = "data: [DONE]"


def parsed(*lines: str, error: str | None = None) -> Answer:
    return read_answer([(float(at), line) for at, line in enumerate(("", *lines, ""))], error, 0.0)


def test_an_answer_is_its_texts_with_the_times_of_their_lines() -> None:
    one, two = (CHUNK % f'{{"content": "{text}"}}' for text in ("one", "\N{SNOWMAN} two"))
    lines = [
        ": keep-alive 1/2",
        'data: {"choices": []}',
        one,
        two,
        "",
        'data: {"usage": {"completion_tokens": 2}}',
    ]
    answer = parsed(*lines, DONE, "")
    assert (answer.error, answer.text, answer.tokens) == (None, "one\N{SNOWMAN} two", 2)
    assert answer.arrivals == [[3.0, 1.0], [4.0, 1.0]]
    assert answer.duration_s == 7.0


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (["data: {}", "data: [DONE]"], None),
        (['data: {"choices": null, "usage": null}', "data: [DONE]"], None),
        (["data: {}"], "the stream ended without [DONE]"),
        ([], "the stream ended without [DONE]"),
        (['data: {"error": {"code": 5}}', "data: [DONE]"], "error in the stream: {'code': 5}"),
        (['data: {"error": "no room"}'], "error in the stream: no room"),
    ],
)
def test_what_went_wrong_in_a_stream_is_told(lines, error):
    assert parsed(*lines).error == error


@pytest.mark.parametrize(
    "nonsense",
    [
        "nonsense",
        "[1, 2]",
        '{"choices": [7]}',
        '{"choices": 7}',
        '{"usage": [3]}',
        '{"choices": [{"delta": "text"}]}',
        '{"choices": [{"delta": {"content": 7}}]}',
    ],
)
def test_nonsense_is_an_error_that_shows_it(nonsense: str) -> None:
    assert parsed(f"data: {nonsense}", DONE).error == f"not a chunk of a chat completion: {nonsense!r}"


def test_a_broken_connection_is_told() -> None:
    assert parsed("data: {}", error="connection lost: reset").error == "connection lost: reset"


def test_reasoning_and_tool_calls_are_text_too() -> None:
    deltas = [
        '{"reasoning_content": "hm"}',
        '{"reasoning": "so"}',
        '{"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}',
        '{"role": "assistant", "content": ""}',
    ]
    assert parsed(*(CHUNK % delta for delta in deltas), DONE).text == "hmsof{}"


def test_tokens_go_to_chunks_by_what_their_texts_hold_and_add_up() -> None:
    assert arrivals_of([(1.0, "a"), (2.0, "b c d"), (3.0, "e")], 3) == [[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]]
    assert arrivals_of([(1.0, "abc"), (2.0, "d")], 8) == [[1.0, 6.0], [2.0, 2.0]]
    assert arrivals_of([], 5) == []


def test_chunks_of_one_read_arrive_together() -> None:
    assert arrivals_of([(0.1, "a"), (0.10001, "b"), (0.2, "c")], 3) == [[0.1, 2.0], [0.2, 1.0]]
