"""Reasoning ends at its budget: the end marker is forced, with a grammar and without, and drafts obey."""

import pytest

from reprise.engine.interface.request import Grammar, ThinkingBudget
from reprise.engine.sampling.grammar import Grammars
from reprise.engine.sampling.matchers import make_matcher
from tests.engine.text.test_tokenizer import make_thinker


@pytest.fixture(scope="module")
def thinker():
    return make_thinker()


@pytest.fixture(scope="module")
def grammars(thinker):
    return Grammars(thinker)


def start(thinker, grammars, num_tokens, grammar=None, **fields):
    markers = thinker.markers
    budget = ThinkingBudget(num_tokens, markers.think_start.tokens, markers.think_end.tokens, **fields)
    asked = grammar or Grammar("any", "")
    asked = Grammar(asked.kind, asked.text, thinking=budget)
    return make_matcher(grammars, grammars.compile(asked), thinker)


def answer(matcher, wish):
    """Return the answer that a model with this wish gives."""
    given = []
    for token in wish:
        (mask,) = matcher.masks()
        chosen = token if mask is None or mask[token] else int(mask.argmax())
        matcher.commit([chosen])
        given.append(chosen)
    return given


@pytest.mark.parametrize("num_tokens", [1, 3, 5, 99])
@pytest.mark.parametrize("is_open", [False, True])
def test_the_thought_has_at_most_as_many_tokens_as_the_budget(thinker, grammars, num_tokens, is_open):
    (begin,), (end,) = thinker.markers.think_start.tokens, thinker.markers.think_end.tokens
    hm = thinker.encode_answer("hm")[0]
    wish = [*([] if is_open else [begin]), *[hm] * 20]
    given = answer(start(thinker, grammars, num_tokens, is_open=is_open), wish)
    first = 0 if is_open else 1
    if num_tokens == 99:
        assert given == wish
    else:
        assert given.index(end) == first + num_tokens - 1
        assert given.count(end) == 1


def test_an_answer_that_does_not_think_is_free(thinker, grammars):
    wish = thinker.encode_answer("hello there, how are you today?")
    assert answer(start(thinker, grammars, 1), wish) == wish


def test_a_thought_that_ends_by_itself_leaves_the_answer_free(thinker, grammars):
    matcher = start(thinker, grammars, 50)
    wish = thinker.encode_answer("<think>hm</think>hello there, how are you today?")
    assert answer(matcher, wish) == wish
    assert not matcher


def test_the_grammar_holds_beside_the_budget(thinker, grammars):
    end = thinker.markers.think_end.tokens[0]
    lark = Grammar("lark", f"start: TEXT <[{end}]> /[0-9]/\nTEXT: /(.|\\n)*/\n")
    matcher = start(thinker, grammars, 4, lark, is_open=True)
    given = answer(matcher, thinker.encode_answer("hm " * 6)[:4] + thinker.encode_answer("7"))
    assert given[3] == end
    assert thinker.decode(given[4:]) == "7"
    assert matcher


def test_drafts_are_cut_where_the_marker_is_forced(thinker, grammars):
    end = thinker.markers.think_end.tokens[0]
    hm = thinker.encode_answer("hm")[0]
    matcher = start(thinker, grammars, 4, is_open=True)
    assert matcher.count_allowed([hm] * 9) == 3
    assert matcher.count_allowed([hm, hm, hm, end, hm]) == 5
    masks = matcher.masks([hm] * 3)
    assert [mask is not None and bool(mask.sum() == 1) for mask in masks] == [False, False, False, True]
    matcher.commit([hm] * 3)
    assert matcher.forced_tokens() == [end]


def test_several_sections_share_the_budget_where_a_model_writes_them(thinker, grammars):
    (begin,), (end,) = thinker.markers.think_start.tokens, thinker.markers.think_end.tokens
    hm = thinker.encode_answer("hm")[0]
    matcher = start(thinker, grammars, 4, is_repeated=True)
    assert answer(matcher, [begin, hm, end, begin, hm, hm, hm]) == [begin, hm, end, begin, hm, end, hm]
