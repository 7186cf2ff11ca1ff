"""A body that is parsed in fragments means what it means when it is parsed at once."""

import json
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic_core import from_json

from reprise.server.requests.json_body import FragmentParser, Outline

parse_fragment = partial(from_json, allow_inf_nan=False)
TEXTS = st.text(st.sampled_from('a"\\,:[]{}ä\U0001f600\n\t '), max_size=30)
SCALARS = st.none() | st.booleans() | st.integers(-99, 99) | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXTS, inner, max_size=6),
    max_leaves=30,
)


def parsed(body, fragment_bytes, fragment_values):
    """The value, or None if it is refused."""
    try:
        outline = Outline(body, fragment_bytes)
        return [FragmentParser(body, outline, parse_fragment, fragment_bytes, fragment_values).parse()]
    except ValueError:
        return None


def parsed_at_once(body):
    try:
        return [parse_fragment(body.decode())]
    except ValueError:
        return None


@given(VALUES, st.booleans(), st.sampled_from([None, 2]), st.integers(16, 40), st.integers(1, 8))
def test_a_valid_body(value, is_ascii, indent, fragment_bytes, fragment_values):
    body = json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode()
    assert parsed(body, fragment_bytes, fragment_values) == [value]


@given(VALUES, st.data(), st.integers(16, 40), st.integers(1, 8))
def test_a_body_with_a_fault(value, data, fragment_bytes, fragment_values):
    body = bytearray(json.dumps(value).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        put = data.draw(st.sampled_from([b"", b",", b":", b"[", b"]", b"{", b"}", b'"', b"\\", b"1", b" "]))
        body[at : at + data.draw(st.integers(0, 1))] = put
    assert parsed(bytes(body), fragment_bytes, fragment_values) == parsed_at_once(bytes(body))


@pytest.mark.parametrize("text", ["\U0001f600" * 50, '\\\\"' * 40, "a\\n\u00e4" * 40])
@pytest.mark.parametrize("fragment_bytes", range(13, 30))
def test_a_long_string_is_not_cut_within_a_character(text, fragment_bytes):
    for is_ascii in (True, False):
        body = json.dumps({"prompt": text}, ensure_ascii=is_ascii).encode()
        assert parsed(body, fragment_bytes, 5) == [{"prompt": text}]


ESCAPES = (r"\ud83d", r"\uDE00", r"\ud83d\ude00", r"\u0041", r"\n", r"\\", r"\\ud83d", "\U0001f600", "a")


@given(st.lists(st.sampled_from(ESCAPES), max_size=40).map("".join), st.integers(13, 30))
@example(r"\ud83d" * 2 + r"\ude00" * 20, 13)
def test_the_halves_of_a_character_stay_together_among_lone_ones(text, fragment_bytes):
    body = f'{{"prompt": "{text}"}}'.encode()
    outline = Outline(body, fragment_bytes)
    assert FragmentParser(body, outline, json.loads, fragment_bytes, 5).parse() == json.loads(body)


def test_no_piece_is_large():
    sizes = []

    def note(text):
        sizes.append(len(text))
        return from_json(text)

    value = {"prompt": "a" * 10**6, "ids": [1000] * 10**5, "members": {f"key{n}": n for n in range(10**4)}}
    body = json.dumps(value).encode()
    assert FragmentParser(body, Outline(body), note, 10_000, 500).parse() == value
    assert max(sizes) < 10_100
