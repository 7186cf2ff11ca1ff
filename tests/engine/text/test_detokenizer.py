"""Detokenized text has whole characters, ends at stop strings, and does not depend on how it is chunked."""

from codecs import getincrementaldecoder
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprise.engine.text.detokenizer import Detokenizer, StopMatcher
from reprise.engine.text.tokenizer import Tokenizer
from reprise.engine.text.vocabulary import Vocabulary
from tests.engine.support import make_tokenizer
from tests.engine.text import tokenizers_zoo as zoo

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


@cache
def make(kind: str) -> Tokenizer:
    return zoo.wrap(zoo.wordpiece(), eos_token="[SEP]") if kind == "wordpiece" else zoo.make(kind)


@cache
def vocabulary(kind: str) -> Vocabulary:
    return Vocabulary(make(kind))


WORDS = st.sampled_from(
    ["The", " the", "the", "  ", " ", "\n", "ing", "22", "won't", " żółw", "ł", ".", "\t", "<0x41>",
     "😀", "中", "e\u0301", "\ufb01", "\ufffd", "\u2581", "\ufeff", "\r\n", "</s>"]
)  # fmt: skip


@pytest.mark.parametrize("kind", [*zoo.KINDS, "wordpiece"])
@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.lists(WORDS | st.text(max_size=4), max_size=8).map("".join), max_size=3))
def test_text_is_what_the_tokenizer_decodes_at_once(kind: str, parts: list[str]) -> None:
    tokenizer = make(kind)
    tokens = [token for part in parts for token in tokenizer.encode_answer(part)]
    detokenizer = Detokenizer(tokenizer, [])
    text = "".join(detokenizer.add(token) for token in tokens) + detokenizer.finish()
    kept = [token for token in tokens if token not in tokenizer.special_ids]
    assert text == tokenizer.backend.decode(kept, skip_special_tokens=False)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(zoo.EXACT)), st.data())
def test_text_is_what_an_incremental_decoder_makes_of_the_bytes(kind: str, data: st.DataObject) -> None:
    known = vocabulary(kind)
    # Ids from size on have no token.
    single = st.binary(min_size=1, max_size=4).map(lambda some: [known.byte_tokens[byte] for byte in some])
    ids = st.integers(0, known.size + 2).map(lambda token: [token])
    tokens = [token for drawn in data.draw(st.lists(single | ids, max_size=8)) for token in drawn]
    detokenizer, decoder = Detokenizer(make(kind), []), getincrementaldecoder("utf-8")(errors="replace")
    text = expected = ""
    for token in tokens:
        text += detokenizer.add(token)
        expected += decoder.decode(known.to_bytes([token]))
        # Some kinds drop a space at the beginning.
        assert text in (expected, expected.removeprefix(" "))
    text, expected = text + detokenizer.finish(), expected + decoder.decode(b"", final=True)
    assert text in (expected, expected.removeprefix(" "))


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece-first", "unigram-bytes"])
@pytest.mark.parametrize(
    ("data", "texts", "rest"),
    [
        (b"\xff\xe4\xb8\xad", ["\ufffd", "", "", "中"], ""),
        (b"\x80\x80a", ["\ufffd", "\ufffd", "a"], ""),
        (b"\xe4\xb8a", ["", "", "\ufffda"], ""),
        (b"\xe0\x80", ["", "\ufffd\ufffd"], ""),
        (b"a\xf0\x9f\x98", ["a", "", "", ""], "\ufffd"),
        ("中".encode() + b"\xff", ["", "", "中", "\ufffd"], ""),
        ("\ufffd".encode(), ["", "", "\ufffd"], ""),
    ],
)
def test_bytes_that_cannot_become_a_character_are_replaced_at_once(
    kind: str, data: bytes, texts: list[str], rest: str
) -> None:
    detokenizer = Detokenizer(make(kind), [])
    tokens = [vocabulary(kind).byte_tokens[byte] for byte in data]
    assert [detokenizer.add(token) for token in tokens] == texts
    assert detokenizer.finish() == rest


class CountingBackend:
    """A tokenizer that counts the tokens it decodes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.num_decoded = 0
        self._backend = tokenizer.backend

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        self.num_decoded += len(tokens)
        return str(self._backend.decode(tokens, skip_special_tokens=skip_special_tokens))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece-first", "characters"])
@pytest.mark.parametrize("data", [b"\x80", b"\xff", b"\xf0\x9f", b" ", b"ab ", "\ufffd".encode(), None])
def test_no_more_than_three_tokens_are_decoded_for_a_token(kind: str, data: bytes | None) -> None:
    tokenizer = make(kind)
    backend = CountingBackend(tokenizer)

    class CountingTokenizer(Tokenizer):
        @property
        def backend(self) -> Any:
            return backend

    detokenizer = Detokenizer(CountingTokenizer(tokenizer.wrapped, tokenizer.vocab_size), [])
    # With no data, ids without a token.
    tokens = [vocabulary(kind).byte_tokens[byte] for byte in data] if data else [10**6]
    for _ in range(1000):
        for token in tokens:
            before = backend.num_decoded
            detokenizer.add(token)
            assert backend.num_decoded - before <= 3


def test_a_token_that_comes_again_is_decoded_only_with_the_one_before(tokenizer: Tokenizer) -> None:
    decode_alone, tokens = tokenizer.decode_alone, tokenizer.encode_answer("a lantern, a bridge, a lantern")
    decode_alone.cache_clear()
    for _ in range(2):
        detokenizer = Detokenizer(tokenizer, [])
        for token in tokens:
            detokenizer.add(token)
        assert decode_alone.cache_info().misses == len(set(tokens))


def test_an_incomplete_character_at_the_end_may_complete_a_stop() -> None:
    tokens = [vocabulary("byte-level").byte_tokens[byte] for byte in b"ab\xe4"]
    detokenizer = Detokenizer(make("byte-level"), ["b\ufffd"])
    assert [detokenizer.add(token) for token in tokens] == ["a", "", ""]
    assert (detokenizer.finish(), detokenizer.stop) == ("", "b\ufffd")


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
