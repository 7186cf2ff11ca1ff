"""The bytes of a vocabulary's tokens, and encoding that reproduces text exactly or returns nothing."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.utils import load_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.text import tokenizer as engine_tokenizer
from reprise.engine.text.vocabulary import Vocabulary, VocabularyError
from tests.engine.text import tokenizers_zoo as zoo

WORDS = st.sampled_from(
    [" the", "the", "add", " of", "  ", "\n", "\n    ", "1", " 22", "żółw", " ł", ".", "\t", "<|end|>",
     "</s>", "<0x41>", "😀", "中", "e\u0301", "\ufb01", "A", "\u00a0", "\r\n"]
)  # fmt: skip
TEXTS = st.lists(WORDS | st.text(max_size=4), max_size=8).map("".join)
ASCII = st.text("".join(map(chr, range(32, 127))), max_size=20)


@cache
def vocabulary(kind: str) -> Vocabulary:
    return Vocabulary(zoo.make(kind))


@pytest.mark.parametrize("kind", zoo.KINDS)
@settings(max_examples=15, deadline=None)
@given(text=TEXTS)
def test_encoded_text_is_exactly_the_text(kind: str, text: str) -> None:
    known = vocabulary(kind)
    ids = known.encode(text.encode())
    if ids is None:
        # Unigram encodes a special or byte token wherever the text contains its token string.
        is_named = kind == "unigram-bytes" and any(name in text for name in ("</s>", "<0x41>"))
        assert kind in zoo.LOSSY or zoo.SPACE in text or is_named
        assert kind in zoo.LOSSY or known.encode_best_effort(text.encode())[1]
    else:
        assert known.to_bytes(ids) == text.encode()
        assert not known.special.intersection(ids)


@settings(max_examples=100, deadline=None)
@given(kind=st.sampled_from(sorted(zoo.KINDS)), data=st.binary(max_size=12))
def test_any_bytes_are_reproduced_or_reported_as_inexact(kind: str, data: bytes) -> None:
    known = vocabulary(kind)
    ids, is_exact = known.encode_best_effort(data)
    assert (known.to_bytes(ids) == data) == is_exact
    if kind in zoo.EXACT:
        assert is_exact
    if (whole := known.encode(data)) is not None:
        assert ids == whole


@pytest.mark.parametrize("kind", zoo.KINDS)
def test_exact_kinds_are_recognized(kind: str) -> None:
    assert vocabulary(kind).is_exact == (kind in zoo.EXACT)


def test_many_texts_are_counted_at_once_and_never_raise() -> None:
    texts = [b"the", b" lazy dog", "żółw".encode(), b"", b"\xc5"]
    known = vocabulary("byte-level")
    counts = known.estimate_lengths(texts)
    assert counts[:4] == [len(known.encode(text) or ()) for text in texts[:4]]
    for kind in zoo.KINDS:
        assert len(vocabulary(kind).estimate_lengths(texts)) == len(texts)


def test_best_effort_leaves_out_only_what_cannot_be_encoded() -> None:
    known = vocabulary("sentencepiece-no-bytes")
    ids, is_exact = known.encode_best_effort("the 中 end中 of".encode())
    assert (known.to_bytes(ids), is_exact) == (b"the  end of", False)


@pytest.mark.parametrize("kind", [kind for kind in zoo.EXACT if "over-spaces" not in kind])
@settings(max_examples=10, deadline=None)
@given(words=st.lists(st.sampled_from(["the", "end", "lazy", "W", "księżyc"]), min_size=2, max_size=4))
def test_text_is_encoded_as_it_stands_in_a_longer_one(kind: str, words: list[str]) -> None:
    known = vocabulary(kind)
    first, *later = words
    parts = [known.encode(first.encode()), *(known.encode(f" {word}".encode()) for word in later)]
    assert known.encode(" ".join(words).encode()) == [token for part in parts for token in part or ()]


@pytest.mark.parametrize("kind", zoo.EXACT)
@settings(max_examples=10, deadline=None)
@given(text=ASCII)
def test_bytes_are_what_the_tokenizer_decodes(kind: str, text: str) -> None:
    known, tokenizer = vocabulary(kind), zoo.make(kind)
    ids = known.encode(b"." + text.encode())
    assert ids is not None
    decoded = tokenizer.backend.decode(ids, skip_special_tokens=False)
    assert decoded == known.to_bytes(ids).decode()


@pytest.mark.parametrize(
    "kind", ["byte-level-polish", "byte-level-spaces", "sentencepiece-first", "sentencepiece-legacy"]
)
def test_bytes_are_those_that_grammars_use(kind: str) -> None:
    known, tokenizer = vocabulary(kind), zoo.make(kind)
    wrong = [
        token
        for token in range(known.size)
        if token not in known.special and known.pieces[token] != tokenizer.piece(token)
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", ["", "draft_polish", "wedlm"])
@settings(max_examples=15, deadline=None)
@given(text=TEXTS)
def test_bundled_vocabularies_give_text_back(folder: str, text: str) -> None:
    known = bundled(folder)
    assert known.is_exact
    ids = known.encode(text.encode())
    assert ids is not None or zoo.SPACE in text
    assert ids is None or known.to_bytes(ids) == text.encode()


@cache
def bundled(folder: str) -> Vocabulary:
    inner = load_tokenizer(BUNDLED_MODEL / folder)
    return Vocabulary(engine_tokenizer.Tokenizer(inner, len(inner.get_vocab())))


def test_specials_are_not_text() -> None:
    known = vocabulary("sentencepiece-first")
    assert {known.special_strings[token] for token in known.special} == {"<s>", "</s>", "<unk>"}
    assert [known.pieces[token] for token in sorted(known.special)] == [b"", b"", b""]
    assert (known.special_strings[known.eos[0]], known.bos) == ("</s>", known.start_id)


def test_text_spelled_like_a_special_is_text() -> None:
    for kind in zoo.EXACT:
        for text in (b"<|end|>", b"</s>", b"<unk>", b"a </s> b"):
            ids = vocabulary(kind).encode(text)
            assert ids is None or not vocabulary(kind).special.intersection(ids)
            assert vocabulary(kind).encode_best_effort(text)[1]


def test_added_tokens_that_are_not_special_are_text() -> None:
    known = vocabulary("byte-level-spaces")
    ids = known.encode(b"a   b<think>")
    assert ids is not None
    assert [known.pieces[token] for token in ids] == [b"a", b"   ", b"b", b"<think>"]


@pytest.mark.parametrize(
    ("kind", "opening"),
    [("byte-level", []), ("byte-level-beginning", ["<|start|>"]), ("sentencepiece-legacy", ["<s>"])],
)
def test_the_opening_of_every_text_is_found(kind: str, opening: list[str]) -> None:
    known = vocabulary(kind)
    assert [known.special_strings[token] for token in known.opening] == opening


def test_a_dummy_space_is_not_part_of_text() -> None:
    for kind in ("sentencepiece-first", "sentencepiece-legacy", "byte-level-prefix-space", "unigram-bytes"):
        ids = vocabulary(kind).encode(b"the")
        assert ids is not None
        assert vocabulary(kind).pieces[ids[0]].startswith(b"t")
        assert zoo.make(kind).backend.encode("the", add_special_tokens=False).ids != ids


def test_byte_fallback_ids_differ_from_text_of_the_same_bytes() -> None:
    known = vocabulary("sentencepiece-first")
    letter = known.encode(b"A")
    assert letter is not None
    assert letter != [known.byte_tokens[ord("A")]]
    assert known.byte_tokens[ord("A")] in known.byte_fallback_ids
    assert known.pieces[known.byte_tokens[ord("A")]] == b"A"
    assert known.pieces[known.byte_tokens[0xFF]] == b"\xff"
    assert vocabulary("byte-level").encode_best_effort(b"\xff\xc5")[1]


def test_a_model_with_more_ids_than_its_tokenizer_has_no_text_for_them() -> None:
    backend = zoo.byte_level()
    known = Vocabulary(zoo.wrap(backend, backend.get_vocab_size() + 12, **zoo.GPT))
    assert len(known.pieces) == known.size == backend.get_vocab_size() + 12
    assert known.pieces[-12:] == [b""] * 12
    assert known.to_bytes([known.size - 1, known.size + 5]) == b""


def test_a_model_with_fewer_ids_than_its_tokenizer_never_uses_the_others() -> None:
    backend = zoo.sentencepiece()
    size = backend.get_vocab_size() - 300
    known = Vocabulary(zoo.wrap(backend, size, **zoo.LLAMA))
    assert (known.size, len(known.pieces)) == (size, size)
    ids, is_exact = known.encode_best_effort(b"the quick brown fox")
    assert is_exact
    assert max(ids) < size


@pytest.mark.parametrize("special", [True, False])
def test_end_tokens_are_not_text_even_if_not_marked_special(special: bool) -> None:
    backend = zoo.byte_level()
    backend.add_tokens([AddedToken("<stop>", special=special, normalized=False)])
    known = Vocabulary(zoo.wrap(backend, eos_token="<stop>"))
    assert known.special_strings[known.eos[0]] == "<stop>"
    assert known.pieces[known.eos[0]] == b""


def test_a_line_break_that_ends_answers_stays_text() -> None:
    backend = zoo.sentencepiece("never")
    wrapped = zoo.wrap(backend, **zoo.LLAMA)
    wrapped.wrapped._eos_token_ids = {backend.token_to_id("\n")}
    known = Vocabulary(wrapped)
    assert known.encode(b"a\nb") is not None


def test_dropout_is_switched_off() -> None:
    backend = zoo.byte_level()
    whole = Vocabulary(zoo.wrap(zoo.byte_level(), **zoo.GPT)).encode(b"the lazy dog jumps over")
    backend.model.dropout = 0.9
    known = Vocabulary(zoo.wrap(backend, **zoo.GPT))
    assert [known.encode(b"the lazy dog jumps over") for _ in range(5)] == [whole] * 5


def test_truncation_and_padding_are_switched_off() -> None:
    backend = zoo.byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    known = Vocabulary(zoo.wrap(backend, **zoo.GPT))
    assert known.encode(b"the lazy dog jumps over") == vocabulary("byte-level").encode(
        b"the lazy dog jumps over"
    )


def make_bare(decoder: decoders.Decoder | None) -> engine_tokenizer.Tokenizer:
    backend = Tokenizer(models.BPE({"a": 0, "b": 1, "</s>": 2}, []))
    if decoder:
        backend.decoder = decoder
    return zoo.wrap(backend, eos_token="</s>")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: zoo.wrap(zoo.wordpiece(), eos_token="[SEP]"), "marks parts of words"),
        (lambda: make_bare(None), "has no decoder"),
        (lambda: make_bare(decoders.CTC()), "unsupported decoder: CTC"),
        (lambda: make_bare(decoders.BPEDecoder()), "unsupported decoder: BPEDecoder"),
        (lambda: make_bare(decoders.Strip(" ", 1, 0)), "unsupported decoder: Strip"),
    ],
)  # fmt: skip
def test_kinds_without_known_bytes_are_rejected(make, reason: str) -> None:
    with pytest.raises(VocabularyError, match=reason):
        Vocabulary(make())
