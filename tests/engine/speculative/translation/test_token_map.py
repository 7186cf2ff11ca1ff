"""Which tokens two vocabularies share."""

from itertools import product

import pytest
from tokenizers import AddedToken

from engine.model.vocabulary import Vocabulary
from engine.speculative.translation.token_map import UNMATCHED, TokenMap
from tests.engine.model import tokenizers_zoo as zoo

PAIRS = list(product(zoo.KINDS, ["byte-level-polish", "byte-level-spaces", "sentencepiece-first", "unigram"]))


def make_map(draft: Vocabulary, target: Vocabulary) -> dict[str | bytes, str | bytes]:
    """What a map says, in words: spellings for specials and bytes for text."""
    to_target = TokenMap(draft, target).to_target.tolist()
    return {
        said(draft, ours): said(target, theirs) for ours, theirs in enumerate(to_target) if theirs != UNMATCHED
    }


def said(known: Vocabulary, token: int) -> str | bytes:
    return known.special_strings.get(token, known.pieces[token])


@pytest.mark.parametrize(("draft", "target"), PAIRS)
def test_tokens_of_equal_bytes_go_both_ways_one_to_one(draft: str, target: str) -> None:
    ours, theirs = (Vocabulary(zoo.make(kind)) for kind in (draft, target))
    shared = TokenMap(ours, theirs)
    assert shared.to_target.shape == (ours.size,)
    assert shared.to_draft.shape == (theirs.size,)
    there = {(token, int(other)) for token, other in enumerate(shared.to_target) if other != UNMATCHED}
    assert there == {(int(other), token) for token, other in enumerate(shared.to_draft) if other != UNMATCHED}
    assert len(there) == shared.num_shared > 55
    for token, other in there:
        assert ours.pieces[token] == theirs.pieces[other]
    # Nothing that both have is left alone.
    left = {ours.pieces[token] for token, other in enumerate(shared.to_target) if other == UNMATCHED} - {b""}
    theirs_left = {theirs.pieces[token] for token, other in enumerate(shared.to_draft) if other == UNMATCHED}
    assert not left & theirs_left


@pytest.mark.parametrize("kind", zoo.KINDS)
def test_a_vocabulary_is_its_own_image(kind: str) -> None:
    known = Vocabulary(zoo.make(kind))
    to_target = TokenMap(known, known).to_target
    assert [token for token in range(known.size) if to_target[token] not in (token, UNMATCHED)] == []
    assert [token for token in range(known.size) if to_target[token] == UNMATCHED and known.pieces[token]] == []


def test_text_stands_for_text_before_bytes_do() -> None:
    ours, theirs = (Vocabulary(zoo.make(kind)) for kind in ("sentencepiece-first", "byte-level"))
    shared = TokenMap(ours, theirs)
    letter = ours.encode(b"A")
    assert letter is not None
    assert theirs.pieces[shared.to_target[letter[0]]] == b"A"
    assert shared.to_target[ours.byte_tokens[ord("A")]] == UNMATCHED
    # Parts of characters are bytes to both.
    assert theirs.pieces[shared.to_target[ours.byte_tokens[0xC5]]] == b"\xc5"


def test_bytes_stand_for_bytes_where_both_have_them() -> None:
    ours, theirs = (Vocabulary(zoo.make(kind)) for kind in ("sentencepiece-first", "sentencepiece-never"))
    shared = TokenMap(ours, theirs)
    assert shared.to_target[ours.byte_tokens[ord("A")]] == theirs.byte_tokens[ord("A")]


def test_of_two_ids_with_the_same_bytes_the_one_that_is_said_is_shared() -> None:
    backend = zoo.byte_level()
    backend.add_tokens([AddedToken(" the", special=False, normalized=False)])
    ours, theirs = Vocabulary(zoo.wrap(backend, **zoo.GPT)), Vocabulary(zoo.make("sentencepiece-first"))
    (said_now,) = ours.encode(b" the") or ()
    assert [token for token, piece in enumerate(ours.pieces) if piece == b" the"] != [said_now]
    (they_say,) = theirs.encode(b" the") or ()
    shared = TokenMap(ours, theirs)
    assert shared.to_draft[they_say] == said_now


def with_specials(eos: str, *specials: str, text: tuple[str, ...] = ()) -> Vocabulary:
    backend = zoo.byte_level()
    backend.add_special_tokens([*specials, eos])
    backend.add_tokens([AddedToken(spelling, special=False, normalized=False) for spelling in text])
    beginning = next((spelling for spelling in specials if "begin" in spelling), None)
    return Vocabulary(zoo.wrap(backend, eos_token=eos, **({"bos_token": beginning} if beginning else {})))


def test_specials_stand_for_those_of_the_same_spelling() -> None:
    said = make_map(
        with_specials("<stop>", "<call>", "<ours>"), with_specials("<stop>", "<theirs>", "<call>")
    )
    assert (said["<call>"], said["<stop>"]) == ("<call>", "<stop>")
    assert "<ours>" not in said
    assert "<theirs>" not in said.values()


def test_ends_and_beginnings_stand_for_each_other_however_they_are_written() -> None:
    said = make_map(with_specials("</s>", "<begin>"), with_specials("<stop>", "<|begin|>"))
    assert (said["</s>"], said["<begin>"]) == ("<stop>", "<|begin|>")


def test_the_end_of_an_answer_is_no_other_special_of_the_same_spelling() -> None:
    # The target has the draft model's end, but ends its answers otherwise.
    said = make_map(with_specials("</s>"), with_specials("<stop>", "</s>"))
    assert said["</s>"] == "<stop>"


def test_a_marker_may_be_a_special_to_one_and_text_to_the_other() -> None:
    special, text = with_specials("<stop>", "<think>"), with_specials("<stop>", text=("<think>",))
    assert make_map(special, text)["<think>"] == b"<think>"
    assert make_map(text, special)[b"<think>"] == "<think>"
