"""The simple strategies of translation: equal ids, shared tokens, and text encoded by itself."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprise.engine.speculative.translation import (
    UNMATCHED,
    ContextTranslator,
    IdentityTranslator,
    SharedTranslator,
    Translation,
)
from reprise.engine.text.vocabulary import VocabularyError
from tests.engine.text import tokenizers_zoo as zoo

SIMPLE = ("shared",)
PAIRS = [
    ("sentencepiece-first", "byte-level"),
    ("byte-level", "sentencepiece-legacy"),
    ("sentencepiece-over-spaces", "byte-level-polish"),
    ("characters", "byte-level-spaces"),
    ("unigram", "byte-level"),
    ("byte-level-beginning", "unigram-bytes"),
]
"""Draft model and target."""

IDS = st.lists(st.integers(0, 499), max_size=40)


@cache
def between(draft: str, target: str, strategy: str) -> Translation:
    return Translation.between(zoo.make(draft), zoo.make(target), strategy)


def growing(tokens: list[int], cuts: list[int]):
    """Return growing prefixes of the tokens, the last of them complete."""
    ends = sorted({cut % (len(tokens) + 1) for cut in cuts} | {len(tokens)})
    return [tokens[:end] for end in ends]


@pytest.mark.parametrize("strategy", SIMPLE)
@pytest.mark.parametrize(("draft", "target"), PAIRS)
@settings(max_examples=10, deadline=None)
@given(tokens=IDS, cuts=st.lists(st.integers(0, 40), max_size=5))
def test_the_counts_of_a_translated_text_are_right(strategy, draft, target, tokens, cuts) -> None:
    translation = between(draft, target, strategy)
    translator = translation.make_translator()
    before: list[int] = []
    for committed in growing([token % translation.num_target_ids for token in tokens], cuts):
        translated = translator.translate_text(committed)
        ids = list(translated.ids)
        assert ids[: translated.num_same] == before[: translated.num_same]
        assert translated.num_same <= len(before)
        assert len(ids) >= translated.num_settled
        assert ids or not committed
        assert all(0 <= token < translation.num_draft_ids for token in ids)
        before = ids


@pytest.mark.parametrize("strategy", SIMPLE)
@pytest.mark.parametrize(("draft", "target"), [pair for pair in PAIRS if pair[0] in zoo.EXACT])
@settings(max_examples=10, deadline=None)
@given(tokens=IDS, cuts=st.lists(st.integers(0, 40), max_size=5))
def test_the_draft_model_reads_exactly_the_text(strategy, draft, target, tokens, cuts) -> None:
    pair = between(draft, target, strategy).pair
    assert pair is not None
    translator = between(draft, target, strategy).make_translator()
    committed = [token for token in tokens if token not in pair.target.special]
    for part in growing(committed, cuts):
        translated = translator.translate_text(part)
    text = pair.target.to_bytes(committed)
    read = pair.draft.to_bytes(translated.ids)
    assert read == text


@pytest.mark.parametrize("strategy", SIMPLE)
@pytest.mark.parametrize(("draft", "target"), PAIRS)
@settings(max_examples=10, deadline=None)
@given(drafted=IDS)
def test_a_translated_draft_is_a_prefix_of_the_draft(strategy, draft, target, drafted) -> None:
    translation = between(draft, target, strategy)
    pair = translation.pair
    assert pair is not None
    drafted = [token % translation.num_draft_ids for token in drafted]
    translator = translation.make_translator()
    translator.translate_text(pair.target.encode(b"the end") or [])
    translated = translator.translate_draft(drafted)
    assert pair.draft.to_bytes(drafted).startswith(pair.target.to_bytes(translated))
    counts = translator.counts
    assert counts.translated == bool(translated)
    assert counts.translated + counts.absorbed + counts.skipped == bool(drafted)
    specials = [token for token in translated if token in pair.target.special]
    assert (
        specials == [token for token in translated[-1:] if token in pair.target.special]
        or strategy == "shared"
    )


def test_an_end_of_the_answer_is_translated() -> None:
    for strategy in SIMPLE:
        pair = between("sentencepiece-first", "byte-level", strategy).pair
        assert pair is not None
        translator = between("sentencepiece-first", "byte-level", strategy).make_translator()
        translator.translate_text(pair.target.encode(b"the lazy") or [])
        letter, end = pair.draft.encode(b".") or [], pair.draft.eos[0]
        translated = translator.translate_draft([*letter, end, *letter])
        assert translated[:2] == [*(pair.target.encode(b".") or []), pair.target.eos[0]]


def test_specials_become_the_draft_model_s_own_or_their_text() -> None:
    for strategy in SIMPLE:
        pair = between("sentencepiece-first", "byte-level", strategy).pair
        assert pair is not None
        translator = between("sentencepiece-first", "byte-level", strategy).make_translator()
        start = next(token for token, text in pair.target.special_strings.items() if text == "<|start|>")
        translated = translator.translate_text(
            [start, *(pair.target.encode(b"the") or []), pair.target.eos[0]]
        )
        assert pair.draft.to_bytes(translated.ids) == b"<|start|>the"
        assert translated.ids[-1] == pair.draft.eos[0]


def test_there_is_one_beginning_of_sequence() -> None:
    for strategy in SIMPLE:
        translation = between("byte-level-beginning", "sentencepiece-legacy", strategy)
        pair = translation.pair
        assert pair is not None
        assert pair.target.bos is not None
        words = pair.target.encode(b"the end") or []
        begun = translation.make_translator().translate_text([pair.target.bos, *words])
        plain = translation.make_translator().translate_text(words)
        assert list(begun.ids) == list(plain.ids)
        assert begun.ids[0] == pair.draft.bos
        assert list(begun.ids).count(pair.draft.bos or 0) == 1


@pytest.mark.parametrize("strategy", [*SIMPLE, "context"])
def test_a_beginning_of_sequence_that_the_draft_model_lacks_is_left_out(strategy: str) -> None:
    translation = between("byte-level", "sentencepiece-legacy", strategy)
    pair = translation.pair
    assert pair is not None
    assert pair.target.bos is not None
    words = pair.target.encode(b"the end") or []
    assert (
        pair.draft.to_bytes(translation.make_translator().translate_text([pair.target.bos, *words]).ids)
        == b"the end"
    )
    # One id is needed in any case.
    assert len(translation.make_translator().translate_text([pair.target.bos]).ids) == 1


def test_shared_ends_a_draft_at_a_token_that_the_target_lacks() -> None:
    translation = between("sentencepiece-first", "byte-level", "shared")
    pair = translation.pair
    assert pair is not None
    alone = next(
        t for t, o in enumerate(pair.token_map.to_target) if o == UNMATCHED and len(pair.draft.pieces[t]) > 3
    )
    (dot,) = pair.draft.encode(b".") or []
    translator = translation.make_translator()
    translator.translate_text(pair.target.encode(b"the") or [])
    assert translator.translate_draft([alone, dot]) == []
    assert pair.target.to_bytes(translator.translate_draft([dot, alone, dot])) == b"."


def test_equal_vocabularies_need_no_translation_and_no_copies() -> None:
    tokenizer = zoo.wrap(zoo.wordpiece(), eos_token="[SEP]")
    translation = Translation.between(tokenizer, tokenizer)
    assert (translation.strategy, translation.pair) == ("none", None)
    translator = translation.make_translator()
    committed = [5, 6, 7]
    translated = translator.translate_text(committed)
    assert translated.ids is committed
    assert (translated.num_same, translated.num_settled) == (0, 3)
    committed.append(8)
    again = translator.translate_text(committed)
    assert again.ids is committed
    assert (again.num_same, again.num_settled) == (3, 4)
    assert translator.translate_draft([9, 10]) == [9, 10]


@settings(max_examples=50, deadline=None)
@given(tokens=st.lists(st.integers(0, 20), max_size=30), cuts=st.lists(st.integers(0, 30), max_size=5))
def test_ids_that_the_other_model_lacks_are_left_out_and_end_a_draft(tokens, cuts) -> None:
    translator = IdentityTranslator(num_draft_ids=10, num_target_ids=15)
    before = 0
    for committed in growing(tokens, cuts):
        translated = translator.translate_text(committed)
        known = [token for token in committed if token < 10]
        # One id is needed even if the draft model lacks all of them.
        assert list(translated.ids) in (known, [0, *known])
        assert translated.num_same == before
        assert translated.ids or not committed
        before = len(translated.ids)
    back = translator.translate_draft(tokens)
    assert back == tokens[: next((at for at, token in enumerate(tokens) if token >= 15), len(tokens))]


def test_each_strategy_has_its_translator() -> None:
    kinds = ("sentencepiece-first", "byte-level")
    made = {
        name: type(between(*kinds, name).make_translator()) for name in ("shared", "none", "context", "auto")
    }
    assert made == {
        "shared": SharedTranslator,
        "none": IdentityTranslator,
        "context": ContextTranslator,
        "auto": ContextTranslator,
    }
    assert between(*kinds, "auto").strategy == "context"


def test_kinds_without_known_bytes_are_rejected_only_if_text_is_translated() -> None:
    tokenizer = zoo.wrap(zoo.wordpiece(), eos_token="[SEP]")
    assert Translation.between(tokenizer, zoo.make("byte-level"), "none").strategy == "none"
    for strategy in ("auto", "context", "shared"):
        with pytest.raises(VocabularyError, match="marks parts of words"):
            Translation.between(tokenizer, zoo.make("byte-level"), strategy)
