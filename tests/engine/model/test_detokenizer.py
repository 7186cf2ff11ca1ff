"""Detokenized text has whole characters, ends at stop strings, and does not depend on how it is chunked."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.detokenizer import Detokenizer
from engine.model.stop_strings import StopMatcher
from engine.model.tokenizer import Tokenizer
from tests.engine.support import make_tokenizer

SMALL = st.text("ab", max_size=14)


def cut_at_first_stop(text: str, stops: list[str]) -> str:
    """Cut by brute force: at the first stop that completes; of several, at the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


@settings(deadline=None)
@given(st.lists(SMALL, max_size=6), st.lists(st.text("ab", min_size=1, max_size=4), max_size=4))
def test_stops_cut_at_the_same_place_however_text_is_chunked(chunks: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    sent = ""
    whole = cut_at_first_stop("".join(chunks), stops)
    for chunk in chunks:
        sent += matcher.feed(chunk)
        assert whole.startswith(sent)
    assert sent + matcher.flush() == whole
    assert ("".join(chunks)).startswith(whole + (matcher.matched or ""))
    assert matcher.stopped == (whole != "".join(chunks))


def test_only_a_possible_stop_is_held_back() -> None:
    matcher = StopMatcher(["END", "###"])
    assert matcher.feed("a#b##") == "a#b"
    assert matcher.feed("E") == "##"
    assert matcher.feed("N") == ""
    assert matcher.feed("d") == "ENd"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return make_tokenizer()


@pytest.mark.parametrize(
    "text", ["lantern 😀 zażółć\n  gęślą", " leading space", "日本語テキスト", "\n\n    x = 1\n"]
)
def test_tokens_become_their_text_and_never_part_of_a_character(text: str, tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, [])
    chunks = [detokenizer.add(token) for token in tokenizer.encode(text)]
    assert "\ufffd" not in "".join(chunks)
    assert "".join(chunks) + detokenizer.finish() == text


def test_an_incomplete_character_at_the_end_is_not_sent(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, [])
    tokens = tokenizer.encode("a😀")[:-1]
    assert "".join(detokenizer.add(token) for token in tokens) + detokenizer.finish() == "a"


def test_a_stop_across_tokens_is_found(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, ["dge la"])
    sent = "".join(
        detokenizer.add(token) for token in tokenizer.encode("a bridge lantern") if not detokenizer.stopped
    )
    assert sent == "a bri"
    assert detokenizer.stop == "dge la"


def test_special_tokens_are_not_text(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, [])
    assert "".join(detokenizer.add(token) for token in tokenizer.encode("one<|im_end|>two")) == "onetwo"


def test_markers_of_tool_calls_are_text_although_they_are_special_tokens(tokenizer: Tokenizer) -> None:
    answer = 'Sure.<tool_call>\n{"name": "ż😀", "arguments": {}}\n</tool_call> Done<|im_end|>.'
    detokenizer = Detokenizer(tokenizer, [])
    assert "".join(detokenizer.add(token) for token in tokenizer.encode(answer)) == answer.replace(
        "<|im_end|>", ""
    )


def test_within_a_call_all_special_tokens_are_text(tokenizer: Tokenizer) -> None:
    answer = "a<|im_start|>b<tool_call>c<|im_start|>d</tool_call>e<|im_start|>f"
    detokenizer = Detokenizer(tokenizer, [])
    sent = "".join(detokenizer.add(token) for token in tokenizer.encode(answer))
    assert sent == "ab<tool_call>c<|im_start|>d</tool_call>ef"


@settings(deadline=None)
@given(st.text(st.sampled_from("ab ż😀\n<>"), max_size=12), st.text(max_size=8))
def test_a_marker_leaves_the_text_around_it_as_it_is(tokenizer: Tokenizer, before: str, after: str) -> None:
    detokenizer = Detokenizer(tokenizer, [])
    tokens = tokenizer.encode(before) + tokenizer.encode("<tool_call>") + tokenizer.encode(after)
    assert "".join(detokenizer.add(token) for token in tokens) + detokenizer.finish() == tokenizer.decode(
        tokens
    )
