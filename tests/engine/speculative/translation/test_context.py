"""Translation in context loses no text in either direction, and translates drafts exactly or not at all."""

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reprise.engine.speculative.translation import (
    MAX_TAIL_TOKENS,
    PREFIX_TOKENS,
    ContextTranslator,
    TokenMap,
    VocabularyPair,
)
from reprise.engine.text.encoding import find_complete_end
from reprise.engine.text.vocabulary import Vocabulary
from tests.engine.text import tokenizers_zoo as zoo

FRAGMENTS = [
    *(
        "the",
        " house",
        " of",
        " the king",
        "ing",
        "\n",
        "\n\n    ",
        "    ",
        "  two  ",
        "\t",
        " 12",
        "3",
        "4567",
    ),
    *("def add(left, right):\n    return left + right\n", "it's", ", ", "x" * 30, "\r\n", "\u00a0"),
    *(
        " Za\u017c\u00f3\u0142\u0107",
        "g\u0119\u015bl\u0105 ja\u017a\u0144",
        "e\u0301",
        "\ufb01",
        "\u4e2d\u6587",
    ),
    *("\U0001f600", "\U0001f468\u200d\U0001f469", "<think>", "</s>", "<|end|>", "<0x41>", "\u2581", "\ufffd"),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=12).map("".join)
SEEDS = st.lists(st.binary(min_size=1, max_size=4) | st.integers(0) | TEXTS, max_size=10)
"""Sources of tokens: texts, bytes and arbitrary ids, including broken characters and specials."""


@cache
def vocabulary(kind: str) -> Vocabulary:
    return Vocabulary(zoo.make(kind))


@cache
def make_pair(draft: str, target: str) -> VocabularyPair:
    ours, theirs = vocabulary(draft), vocabulary(target)
    return VocabularyPair(ours, theirs, TokenMap(ours, theirs))


def pairs(kinds: Sequence[str]) -> st.SearchStrategy[VocabularyPair]:
    return st.builds(make_pair, st.sampled_from(kinds), st.sampled_from(kinds))


ANY = pairs(list(zoo.KINDS))
EXACT = pairs(list(zoo.EXACT))
PREFIXES = st.integers(0, 7)


def tokens_of(vocabulary: Vocabulary, seeds: Sequence[str | bytes | int]) -> list[int]:
    tokens: list[int] = []
    for seed in seeds:
        if isinstance(seed, int):
            tokens.append(seed % vocabulary.size)
        else:
            tokens += vocabulary.encode_best_effort(seed if isinstance(seed, bytes) else seed.encode())[0]
    return tokens


def draft_model_text(pair: VocabularyPair, tokens: Sequence[int]) -> tuple[bytes, bytes]:
    """Return the bytes that a draft model reads of committed tokens, and those of an incomplete character."""
    text = b""
    start = 0
    for token in tokens:
        piece = pair.target.pieces[token]
        if not piece:
            piece = pair.draft.to_bytes(pair.to_draft_ids(token))
            start = len(text) + len(piece)
        text += piece
    end = start + find_complete_end(text[start:])
    return text[:end], text[end:]


@settings(deadline=None, max_examples=40)
@given(ANY, SEEDS, PREFIXES, st.lists(st.integers(1, 30)))
def test_the_text_depends_on_the_tokens_and_not_on_how_they_were_batched(
    pair: VocabularyPair, seeds: list[str | bytes | int], p: int, sizes: list[int]
) -> None:
    tokens = tokens_of(pair.target, seeds)
    translator = ContextTranslator(pair, p)
    before: list[int] = []
    num_settled = 0
    end = 0
    for size in [*sizes, len(tokens)]:
        end += size
        translated = translator.translate_text(tokens[:end])
        ids = list(translated.ids)
        assert ids[: translated.num_same] == before[: translated.num_same]
        assert num_settled <= translated.num_same or not before
        assert num_settled <= translated.num_settled <= len(ids)
        assert ids[:num_settled] == before[:num_settled]
        assert bool(ids) == bool(tokens or pair.draft.opening)
        before, num_settled = ids, translated.num_settled
    at_once = ContextTranslator(pair, p).translate_text(tokens)
    assert (list(at_once.ids), at_once.num_settled) == (before, num_settled)


@settings(deadline=None, max_examples=40)
@given(EXACT, SEEDS, PREFIXES)
def test_no_text_is_lost_for_the_draft_model(
    pair: VocabularyPair, seeds: list[str | bytes | int], p: int
) -> None:
    tokens = tokens_of(pair.target, seeds)
    text, _ = draft_model_text(pair, tokens)
    assert pair.draft.to_bytes(ContextTranslator(pair, p).translate_text(tokens).ids) == text


@settings(deadline=None, max_examples=80)
@given(ANY, SEEDS, SEEDS, PREFIXES)
def test_a_translated_draft_continues_the_committed_text_exactly(
    pair: VocabularyPair, seeds: list[str | bytes | int], drafted_seeds: list[str | bytes | int], p: int
) -> None:
    tokens, drafted = tokens_of(pair.target, seeds), tokens_of(pair.draft, drafted_seeds)
    translator = ContextTranslator(pair, p)
    translator.translate_text(tokens)
    translated = translator.translate_draft(drafted)
    _, incomplete = draft_model_text(pair, tokens)
    end = next((at for at, token in enumerate(drafted) if not pair.draft.pieces[token]), len(drafted))
    draft_text = pair.draft.to_bytes(drafted[:end])
    special = pair.to_target_ids(drafted[end : end + 1])
    if (
        special
        and translated[-1:] == special
        and incomplete + pair.target.to_bytes(translated[:-1]) == draft_text
    ):
        translated = translated[:-1]
    assert all(pair.target.pieces[token] for token in translated)
    if translated:
        assert draft_text.startswith(incomplete + pair.target.to_bytes(translated))
    counts = translator.counts
    assert counts.translated + counts.absorbed + counts.skipped == bool(drafted)


@settings(deadline=None, max_examples=40)
@given(EXACT, TEXTS, TEXTS, PREFIXES)
def test_no_draft_is_lost_for_the_target(pair: VocabularyPair, text: str, more: str, p: int) -> None:
    translator = ContextTranslator(pair, p)
    translator.translate_text(tokens_of(pair.target, [text]))
    translated = translator.translate_draft(tokens_of(pair.draft, [more]))
    # Some have no token for the mark with which they write a space, only bytes.
    can_be_encoded = pair.target.encode(more.encode()) is not None
    assert pair.target.to_bytes(translated) == more.encode() * can_be_encoded
    assert translator.counts.skipped == (not can_be_encoded)


@settings(deadline=None, max_examples=40)
@given(EXACT, TEXTS, st.integers(0, 40), PREFIXES)
def test_a_correct_draft_is_translated_even_within_a_character(
    pair: VocabularyPair, text: str, num_tokens: int, p: int
) -> None:
    # Some can encode these only as bytes: their marks for spaces, and the strings of specials and bytes.
    assume("\u2581" not in text and "<" not in text)
    tokens = tokens_of(pair.target, [text])
    head, rest = tokens[:num_tokens], pair.target.to_bytes(tokens[num_tokens:])
    _, incomplete = draft_model_text(pair, head)
    translator = ContextTranslator(pair, p)
    translator.translate_text(head)
    translated = translator.translate_draft(tokens_of(pair.draft, [incomplete + rest]))
    assert pair.target.to_bytes(translated) == rest


@pytest.mark.parametrize(
    ("draft", "target"),
    [
        ("sentencepiece-first", "byte-level"),
        ("byte-level-polish", "sentencepiece-never"),
        ("characters", "byte-level"),
    ],
)
def test_the_ids_are_those_of_the_whole_text(draft: str, target: str) -> None:
    pair = make_pair(draft, target)
    text = "\n".join(zoo.ENGLISH + zoo.POLISH).encode()
    tokens = tokens_of(pair.target, [text])
    translator = ContextTranslator(pair, PREFIX_TOKENS)
    for end in range(len(tokens)):
        translator.translate_text(tokens[:end])
    assert translator.translate_text(tokens).ids == pair.draft.encode(text)


def test_a_draft_that_merges_with_the_prefix_is_encoded_without_it() -> None:
    pair = make_pair("characters", "byte-level")
    translator = ContextTranslator(pair, PREFIX_TOKENS)
    translator.translate_text(tokens_of(pair.target, ["in", " t"]))
    translated = translator.translate_draft(tokens_of(pair.draft, ["he"]))
    assert pair.target.to_bytes(translated) == b"he"
    assert translator.counts.resynchronised == 1


def test_the_end_of_an_answer_is_translated() -> None:
    pair = make_pair("sentencepiece-first", "byte-level")
    end, theirs = pair.draft.eos[0], pair.target.eos[0]
    translator = ContextTranslator(pair, PREFIX_TOKENS)
    translator.translate_text(tokens_of(pair.target, ["the house"]))
    word = pair.target.encode(b" of")
    assert translator.translate_draft([end]) == [theirs]
    assert translator.translate_draft([*tokens_of(pair.draft, [" of"]), end, end]) == [*word, theirs]


def test_a_draft_of_half_a_character_is_absorbed() -> None:
    pair = make_pair("byte-level", "characters")
    translator = ContextTranslator(pair, PREFIX_TOKENS)
    translator.translate_text(tokens_of(pair.target, ["the"]))
    assert translator.translate_draft(tokens_of(pair.draft, [b"\xf0\x9f"])) == []
    assert (translator.counts.absorbed, translator.counts.skipped) == (1, 0)


def test_drafts_are_skipped_while_unencodable_text_is_unsettled() -> None:
    pair = make_pair("characters-no-bytes", "byte-level")
    translator = ContextTranslator(pair, PREFIX_TOKENS)
    tokens = tokens_of(pair.target, ["\U0001f600"])
    translator.translate_text(tokens)
    drafted = tokens_of(pair.draft, [" dog"])
    assert translator.translate_draft(drafted) == []
    assert translator.counts.skipped == 1
    tokens += tokens_of(pair.target, [" quick brown fox" * 3])
    translator.translate_text(tokens)
    assert pair.target.to_bytes(translator.translate_draft(drafted)) == b" dog"


class Counting(Vocabulary):
    """A vocabulary that counts the bytes it is asked to encode."""

    num_bytes = 0

    def encode(self, text: bytes) -> list[int] | None:
        self.num_bytes += len(text)
        return super().encode(text)


@pytest.mark.parametrize(
    "text", ["the king of the house, ", "\u4e2d\u6587", "x", " ", "\U0001f600", "12", "\n"]
)
@pytest.mark.parametrize(
    ("draft", "target"), [("sentencepiece-first", "byte-level"), ("lower-case", "characters")]
)
def test_no_step_costs_more_in_a_longer_text(draft: str, target: str, text: str) -> None:
    ours, theirs = Counting(zoo.make(draft)), Counting(zoo.make(target))
    pair = VocabularyPair(ours, theirs, TokenMap(ours, theirs))
    tokens = tokens_of(theirs, [text * 3000])[:600]
    translator = ContextTranslator(pair, PREFIX_TOKENS)
    costs = []
    for end in range(1, len(tokens) + 1):
        ours.num_bytes = theirs.num_bytes = 0
        translated = translator.translate_text(tokens[:end])
        translator.translate_draft(ours.encode_best_effort(text.encode())[0])
        costs.append(ours.num_bytes + theirs.num_bytes)
        assert len(translated.ids) - translated.num_settled <= 4 * MAX_TAIL_TOKENS
    assert max(costs[300:]) <= max(costs[:300])


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(["byte-level", "byte-level-spaces", "sentencepiece-never", "characters"]), TEXTS)
def test_the_tokens_of_a_text_are_those_of_its_words(kind: str, text: str) -> None:
    """Encoding word by word gives the ids that the tokenizer gives for the whole text."""
    assume("<" not in text)
    whole = zoo.make(kind).backend.encode(text, add_special_tokens=False).ids
    assert vocabulary(kind).encode(text.encode()) in (whole, None)
