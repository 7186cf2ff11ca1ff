"""The tokens that two vocabularies share."""

from itertools import product

import pytest
from tokenizers import AddedToken

from reprise.engine.speculative.translation import UNMATCHED, TokenMap
from reprise.engine.text.vocabulary import Vocabulary
from tests.engine.text import tokenizers_zoo as zoo

PAIRS = list(product(zoo.KINDS, ["byte-level-polish", "byte-level-spaces", "sentencepiece-first", "unigram"]))


def make_map(draft: Vocabulary, target: Vocabulary) -> dict[str | bytes, str | bytes]:
    """Return a map in readable form: strings for specials and bytes for text."""
    to_target = TokenMap(draft, target).to_target.tolist()
    return {
        name(draft, ours): name(target, theirs)
        for ours, theirs in enumerate(to_target)
        if theirs != UNMATCHED
    }


def name(known: Vocabulary, token: int) -> str | bytes:
    return known.special_strings.get(token, known.pieces[token])


@pytest.mark.parametrize(("draft", "target"), PAIRS)
def test_tokens_of_equal_bytes_match_one_to_one(draft: str, target: str) -> None:
    ours, theirs = (Vocabulary(zoo.make(kind)) for kind in (draft, target))
    shared = TokenMap(ours, theirs)
    assert shared.to_target.shape == (ours.size,)
    assert shared.to_draft.shape == (theirs.size,)
    there = {(token, int(other)) for token, other in enumerate(shared.to_target) if other != UNMATCHED}
    assert there == {(int(other), token) for token, other in enumerate(shared.to_draft) if other != UNMATCHED}
    assert len(there) == shared.num_shared > 55
    for token, other in there:
        assert ours.pieces[token] == theirs.pieces[other]
    # No token that both have is left unmatched.
    left = {ours.pieces[token] for token, other in enumerate(shared.to_target) if other == UNMATCHED} - {b""}
    theirs_left = {theirs.pieces[token] for token, other in enumerate(shared.to_draft) if other == UNMATCHED}
    assert not left & theirs_left


@pytest.mark.parametrize("kind", zoo.KINDS)
def test_a_vocabulary_matches_itself(kind: str) -> None:
    known = Vocabulary(zoo.make(kind))
    to_target = TokenMap(known, known).to_target
    assert [token for token in range(known.size) if to_target[token] not in (token, UNMATCHED)] == []
    assert [
        token for token in range(known.size) if to_target[token] == UNMATCHED and known.pieces[token]
    ] == []


def test_text_matches_text_rather_than_byte_fallback() -> None:
    ours, theirs = (Vocabulary(zoo.make(kind)) for kind in ("sentencepiece-first", "byte-level"))
    shared = TokenMap(ours, theirs)
    letter = ours.encode(b"A")
    assert letter is not None
    assert theirs.pieces[shared.to_target[letter[0]]] == b"A"
    assert shared.to_target[ours.byte_tokens[ord("A")]] == UNMATCHED
    # Parts of characters are bytes in both vocabularies.
    assert theirs.pieces[shared.to_target[ours.byte_tokens[0xC5]]] == b"\xc5"


def test_byte_fallback_matches_byte_fallback_if_both_have_it() -> None:
    ours, theirs = (Vocabulary(zoo.make(kind)) for kind in ("sentencepiece-first", "sentencepiece-never"))
    shared = TokenMap(ours, theirs)
    assert shared.to_target[ours.byte_tokens[ord("A")]] == theirs.byte_tokens[ord("A")]


def test_of_two_ids_with_the_same_bytes_the_one_the_tokenizer_uses_is_matched() -> None:
    backend = zoo.byte_level()
    backend.add_tokens([AddedToken(" the", special=False, normalized=False)])
    ours, theirs = Vocabulary(zoo.wrap(backend, **zoo.GPT)), Vocabulary(zoo.make("sentencepiece-first"))
    (our_id,) = ours.encode(b" the") or ()
    assert [token for token, piece in enumerate(ours.pieces) if piece == b" the"] != [our_id]
    (their_id,) = theirs.encode(b" the") or ()
    shared = TokenMap(ours, theirs)
    assert shared.to_draft[their_id] == our_id


def with_specials(eos: str, *specials: str, text: tuple[str, ...] = ()) -> Vocabulary:
    backend = zoo.byte_level()
    backend.add_special_tokens([*specials, eos])
    backend.add_tokens([AddedToken(token_string, special=False, normalized=False) for token_string in text])
    beginning = next((token_string for token_string in specials if "begin" in token_string), None)
    return Vocabulary(zoo.wrap(backend, eos_token=eos, **({"bos_token": beginning} if beginning else {})))


def test_specials_match_those_of_the_same_string() -> None:
    matched = make_map(
        with_specials("<stop>", "<call>", "<ours>"), with_specials("<stop>", "<theirs>", "<call>")
    )
    assert (matched["<call>"], matched["<stop>"]) == ("<call>", "<stop>")
    assert "<ours>" not in matched
    assert "<theirs>" not in matched.values()


def test_end_and_beginning_tokens_match_however_they_are_written() -> None:
    matched = make_map(with_specials("</s>", "<begin>"), with_specials("<stop>", "<|begin|>"))
    assert (matched["</s>"], matched["<begin>"]) == ("<stop>", "<|begin|>")


def test_the_end_token_does_not_match_another_special_of_the_same_string() -> None:
    # The target has the draft model's end token too, but ends its answers with another.
    matched = make_map(with_specials("</s>"), with_specials("<stop>", "</s>"))
    assert matched["</s>"] == "<stop>"


def test_a_marker_may_be_special_in_one_vocabulary_and_text_in_the_other() -> None:
    special, text = with_specials("<stop>", "<think>"), with_specials("<stop>", text=("<think>",))
    assert make_map(special, text)["<think>"] == b"<think>"
    assert make_map(text, special)[b"<think>"] == "<think>"
