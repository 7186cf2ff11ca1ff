"""Text is encoded as transformers encodes it, on several threads at once."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import load
from tokenizers import normalizers
from transformers import CodeLlamaTokenizer

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.interface.cancellation import UnwantedError, run_while
from reprise.engine.interface.errors import UnbrokenTextError
from reprise.engine.text import encoding
from reprise.engine.text.encoding import TextEncoder
from tests.engine.text import tokenizers_zoo as zoo

PIECES = st.sampled_from(
    [" the", "The end", " of the\n", "left\nright", "  ", "\n", "\n    ", "1", " 22", "żółw", "\t",
     "<|end|>", "</s>", "<s>", "<unk>", "<0x41>", "<think>", "😀", "中", "e\u0301", "\ufb01", "\u00a0",
     "\r\n", zoo.SPACE, "<|im_end|>", "\u200d", "\ufffd"]
)  # fmt: skip
TEXTS = st.lists(PIECES | st.text(max_size=5), max_size=10).map("".join)
FOLDERS = ("", "draft_polish", "wedlm")
WORDPIECE = {
    "wordpiece": zoo.wordpiece,
    "wordpiece-bert": lambda: zoo.with_normalizer(
        zoo.wordpiece(), normalizers.BertNormalizer(strip_accents=True)
    ),
}


def make(kind: str):
    """One of transformers' tokenizers."""
    if kind in FOLDERS:
        return load(BUNDLED_MODEL / kind)._tokenizer
    if kind in WORDPIECE:
        return zoo.wrap(WORDPIECE[kind](), eos_token="[SEP]").wrapped._tokenizer
    return zoo.make(kind).wrapped._tokenizer


@pytest.fixture(scope="module", params=[*FOLDERS, *WORDPIECE, *zoo.KINDS])
def both(request):
    """A tokenizer and its encoder, which cuts texts wherever it may."""
    inner = make(request.param)
    return inner, TextEncoder(inner, slice_characters=1)


@settings(max_examples=40, deadline=None)
@given(text=TEXTS, adds=st.booleans(), splits=st.booleans())
def test_the_ids_are_those_of_transformers(both, text: str, adds: bool, splits: bool) -> None:
    inner, encoder = both
    expected = inner(text, add_special_tokens=adds, split_special_tokens=splits)["input_ids"]
    assert encoder.encode(text, adds_specials=adds, splits_specials=splits) == expected
    # Nor does a call leave a trace for the next one.
    assert encoder.encode(text) == inner.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("kind", "is_cut"),
    [
        ("", True),
        ("byte-level", True),
        ("sentencepiece-legacy", True),
        ("sentencepiece-over-spaces", False),
        ("unigram", True),
        ("unigram-bytes", True),
        ("wordpiece", True),
        ("wordpiece-bert", True),
    ],
)
def test_a_text_that_nobody_waits_for_is_not_encoded_to_its_end(kind: str, is_cut: bool) -> None:
    encoder, rest = TextEncoder(make(kind), slice_characters=8), iter((True, True))
    ends = pytest.raises(UnwantedError) if is_cut else nullcontext()
    with ends:
        run_while(lambda: next(rest, False), partial(encoder.encode, "left right\n" * 9))


def test_a_text_that_cannot_be_cut_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(encoding, "MAX_UNBROKEN", 100)
    encoder, whole = (TextEncoder(make("byte-level"), slice_characters=most) for most in (10, 10_000))
    text = "the end " * 9 + "1" * 90
    assert encoder.encode(text) == whole.encode(text)
    with pytest.raises(UnbrokenTextError, match="100"):
        encoder.encode(text + "1" * 20)


def test_nor_is_a_longer_one_encoded_by_a_tokenizer_whose_texts_are_not_cut(monkeypatch) -> None:
    monkeypatch.setattr(encoding, "MAX_UNBROKEN", 100)
    encoder = TextEncoder(make("sentencepiece-over-spaces"))
    assert encoder.encode("the end " * 12)
    with pytest.raises(UnbrokenTextError, match="100"):
        encoder.encode("the end " * 13)


def test_many_threads_encode_at_once(both) -> None:
    inner, encoder = both
    texts = [f"The {at} quick żółw <|end|> 😀 </s> " * (at + 1) for at in range(60)]
    expected = [inner.encode(text, add_special_tokens=False) for text in texts]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(encoder.encode, texts)) == expected


def test_a_class_with_a_way_of_its_own_keeps_it() -> None:
    inner = CodeLlamaTokenizer(
        vocab={"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4, zoo.SPACE: 5}, merges=[]
    )
    encoder = TextEncoder(inner)
    for text in ("ab", "a<FILL_ME>b"):
        assert encoder.encode(text, adds_specials=True) == inner.encode(text)
