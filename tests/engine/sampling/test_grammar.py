"""Answers match their grammar, and drafts under a grammar change nothing but the time."""

import dataclasses
import json
import random
import re
from collections.abc import Sequence

import jsonschema
import pytest

from reprise.drafters.base import NO_DRAFT, Draft, DraftQuery
from reprise.engine.interface.errors import GrammarError
from reprise.engine.interface.request import DraftChoice, GenerationRequest, Grammar
from reprise.engine.sampling import grammar as grammar_module
from reprise.engine.sampling.grammar import MAX_COMPILED, Grammars, Mask
from reprise.engine.speculative.acceptance import count_accepted
from reprise.engine.speculative.proposers import DraftSources
from tests.combinations import spread
from tests.drafters.fakes import scored
from tests.engine.conftest import StartEngine
from tests.engine.driven import Driven, loaded_once
from tests.engine.speculative.test_drafting import Scripted, run, sources
from tests.engine.support import Answer, ask, make_loaded, make_tokenizer, oracle, prompt_of, request

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["lantern", "bridge"]},
        "sizes": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 999},
            "minItems": 2,
            "maxItems": 3,
        },
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}
PERSON = Grammar("json_schema", json.dumps(SCHEMA))
WORDS = Grammar("regex", "(red|green|blue)( (red|green|blue)){3}")
PAIR = Grammar("lark", 'start: "<" /[a-z]{2,5}/ "=" /[0-9]{1,3}/ ">"')
PLACES = Grammar(
    "json_schema",
    json.dumps(
        {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {name: {"type": "string"} for name in names},
                    "required": names,
                    "additionalProperties": False,
                }
                for names in (["city", "country"], ["path"])
            ]
        }
    ),
)
"""Both kinds of object have a string after as many lexemes, and different texts may follow it."""
SHORT = Grammar("lark", 'start: "<" name ">" | "(" name ")"\nname[max_tokens=3]: /[a-z]+/')
"""llguidance cannot roll back in it."""
TEMPERATURES = [0.0, 0.8]


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(make_tokenizer())


def constrained(temperature: float) -> list[GenerationRequest]:
    """Make requests with a grammar each, and one without."""
    kinds = [PERSON, WORDS, None, PAIR, PERSON]
    return [
        dataclasses.replace(
            request(prompt_of(10 + 9 * i, i), 120, name=str(i), temperature=temperature, seed=i),
            grammar=grammar,
            max_tokens=40 if grammar is None else 120,
        )
        for i, grammar in enumerate(kinds)
    ]


def without_drafts(requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
    return [dataclasses.replace(one, draft=DraftChoice("none")) for one in requests]


@pytest.mark.parametrize(("name", "temperature"), spread(["llama", "gemma3_text", "mamba2"], TEMPERATURES))
def test_answers_match_their_grammar_and_drafts_change_none(
    name: str, temperature: float, start_engine: StartEngine
) -> None:
    asked = constrained(temperature)
    engine = start_engine(name, make_sources=lambda _: DraftSources({}, scored(1.0)))
    alone = [ask(engine, one).finished() for one in without_drafts(asked)]
    assert all(one.usage.drafting.num_drafted == 0 for one in alone)
    plain = [list(one.tokens) for one in alone]
    decode = make_tokenizer().decode
    texts = [decode(tokens[:-1]) for tokens in plain]
    for at in (0, 4):
        jsonschema.validate(json.loads(texts[at]), SCHEMA)
    assert set(texts[1].split()) <= {"red", "green", "blue"}
    assert plain[2] == oracle(make_loaded(name), asked[2])
    assert run(engine, asked) == plain
    drafted = [ask(engine, one).finished() for one in asked]
    assert [list(one.tokens) for one in drafted] == plain
    assert [source for source, _, _ in drafted[0].usage.drafting.by_source] == ["grammar"]
    # Other drafters' drafts are cut to what the grammar allows: all right, some right, none right.
    answers = {one.prompt: tokens for one, tokens in zip(asked, plain, strict=True)}
    for chance in (1.0, 0.0, 0.7):
        other = start_engine(name, make_sources=sources(Scripted(answers, chance)), draft_type="suffix")
        assert run(other, asked) == plain
    assert [run(other, [one])[0] for one in asked] == plain


def test_forced_tokens_are_drafted_unless_a_longer_draft_agrees_with_them(start_engine: StartEngine) -> None:
    asked = constrained(0.0)[0]
    plain = run(start_engine("llama"), [asked])[0]

    class Watched(Scripted):
        def propose(self, query: DraftQuery) -> Draft:
            _, at = self.open_now[query.seq]
            tokens = plain[at : at + 6] if at == 0 else []
            return Draft(tokens, self.name, 0, 0.9) if tokens else NO_DRAFT

    engine = start_engine(
        "llama", make_sources=sources(Watched({asked.prompt: plain}, 1.0)), draft_type="suffix"
    )
    finished = ask(engine, asked).finished()
    assert list(finished.tokens) == plain
    counts = {source: (drafted, right) for source, drafted, right in finished.usage.drafting.by_source}
    assert counts["suffix"] == (6, 6)
    assert counts["grammar"][1] == counts["grammar"][0] > 3


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (Grammar("json_schema", '{"not": {"type": "string"}}'), "not"),
        (Grammar("json_schema", '{"$ref": "#/nowhere"}'), "nowhere"),
        (Grammar("json_schema", '{"type": "array", "uniqueItems": true}'), "uniqueItems"),
        (Grammar("json_schema", "{"), "EOF"),
        (Grammar("regex", "(?=a)b"), "look-ahead"),
        (Grammar("lark", "start: nope"), "nope"),
    ],
)
def test_an_unusable_grammar_is_refused_with_the_part_at_fault(
    grammar: Grammar, words: str, grammars: Grammars
) -> None:
    with pytest.raises(GrammarError, match=words):
        grammars.compile(grammar)


def test_a_sequence_takes_its_compiled_grammar_however_many_came_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driven = Driven(loaded_once("llama"))
    compiled = driven.grammars.compile(WORDS)
    for number in range(MAX_COMPILED):
        driven.grammars.compile(Grammar("regex", f"{number}"))

    def compile_again(*_: object, **_named: object) -> None:
        raise AssertionError("a grammar is compiled again")

    monkeypatch.setattr(grammar_module, "LLMatcher", compile_again)
    answer = driven.ask(dataclasses.replace(request(prompt_of(9), 60), grammar=compiled))
    driven.finish()
    answer.finished()
    assert re.fullmatch(WORDS.text, answer.text)


def test_an_unusable_grammar_is_refused_before_the_engine_s_thread_has_it(start_engine: StartEngine) -> None:
    answer = Answer()
    asked = dataclasses.replace(request(prompt_of(9)), grammar=Grammar("lark", "start: nope"))
    with pytest.raises(GrammarError, match="nope"):
        start_engine("llama").submit(asked, answer)
    assert answer.events == []


def test_a_rejected_draft_of_another_text_changes_no_mask(grammars: Grammars) -> None:
    encode = make_tokenizer().encode_answer
    draft, answer = encode('{"city": "Flipe'), encode('{"path": "Flipe"}')
    (end,) = encode('",')
    num_right = count_accepted(draft, answer)
    plain, drafting = grammars.matcher(PLACES), grammars.matcher(PLACES)
    assert drafting.masks(draft)[-1][end]
    for token in answer:
        drafting.commit([token])
        plain.commit([token])
        assert (drafting.masks()[0] == plain.masks()[0]).all()
    redrafting = grammars.matcher(PLACES)
    redrafting.masks(draft)
    redrafting.commit(answer[: num_right + 1])
    masks = redrafting.masks(answer[num_right + 1 :])
    assert len(masks) == len(answer) - num_right
    assert not [mask for mask in masks if mask[end]]


@pytest.mark.parametrize("grammar", [PLACES, SHORT], ids=["places", "short"])
def test_masks_do_not_depend_on_drafts_before(grammar: Grammar, grammars: Grammars) -> None:
    rng, eos_ids = random.Random(5), make_tokenizer().eos_ids

    def mask_after(tokens: Sequence[int]) -> Mask:
        plain = grammars.matcher(grammar)
        plain.commit(tokens)
        (mask,) = plain.masks()
        assert mask is not None
        return mask

    def continued(tokens: Sequence[int], num: int) -> list[int]:
        longer = list(tokens)
        for _ in range(num):
            allowed = [token for token in mask_after(longer).nonzero()[0].tolist() if token not in eos_ids]
            longer += rng.sample(allowed, min(1, len(allowed)))
        return longer

    for _ in range(200):
        drafting, answer = grammars.matcher(grammar), list[int]()
        for _ in range(4):
            for _ in range(rng.randint(1, 2)):
                draft = continued(answer, rng.randint(0, 12))[len(answer) :]
                for num_drafted, mask in enumerate(drafting.masks(draft)):
                    assert (mask == mask_after([*answer, *draft[:num_drafted]])).all()
            num_right = rng.randint(0, len(draft))
            step = continued([*answer, *draft[:num_right]], 1)[len(answer) :]
            drafting.commit(step)
            answer += step


def test_answers_are_the_same_after_a_draft_of_another_text(start_engine: StartEngine) -> None:
    encode = make_tokenizer().encode_answer
    (end,) = encode('",')
    # The model prefers "path", and everywhere the token that may follow only the string of the other text.
    bias = (end, 90.0), (encode('{"path')[-1], 90.0)
    asked = dataclasses.replace(request(prompt_of(9), 24, logit_bias=bias), grammar=PLACES)
    plain = run(start_engine("llama"), without_drafts([asked]))[0]

    class Elsewhere(Scripted):
        def propose(self, query: DraftQuery) -> Draft:
            _, at = self.open_now[query.seq]
            return NO_DRAFT if at else Draft(encode('{"city": "Flipe'), self.name, 0, 0.9)

    drafter = Elsewhere({asked.prompt: plain}, 1.0)
    engine = start_engine("llama", make_sources=sources(drafter), draft_type="suffix")
    finished = ask(engine, asked).finished()
    assert list(finished.tokens) == plain
    assert "suffix" in [source for source, _, _ in finished.usage.drafting.by_source]


@pytest.mark.parametrize("grammar", [PERSON, WORDS, PAIR], ids=lambda grammar: grammar.kind)
def test_masks_of_a_draft_leave_no_trace(grammar: Grammar, grammars: Grammars) -> None:
    rng = random.Random(4)
    plain, drafting = grammars.matcher(grammar), grammars.matcher(grammar)
    eos = min(make_tokenizer().eos_ids)
    for _ in range(200):
        (mask,) = plain.masks()
        allowed = mask.nonzero()[0].tolist()
        draft: list[int] = []
        for _ in range(rng.randint(0, 5)):
            last = drafting.masks(draft)[-1]
            following = int(rng.choice(last.nonzero()[0].tolist()))
            if following == eos:
                break
            draft.append(following)
        assert drafting.count_allowed(draft) == len(draft)
        assert drafting.count_allowed([*draft, eos]) == len(draft)
        masks = drafting.masks(draft)
        assert len(masks) == len(draft) + 1
        assert (masks[0] == mask).all()
        assert drafting.forced_tokens() == plain.forced_tokens()
        token = rng.choice(allowed)
        if token == eos:
            return
        plain.commit([token])
        drafting.commit([token])
    raise AssertionError("the answer did not end within 200 tokens")


def test_a_failing_grammar_ends_only_its_own_request(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = constrained(0.8)[:3]
    engine = start_engine("llama", make_sources=lambda _: DraftSources({}, scored(1.0)))
    plain = run(engine, asked)
    original = type(Grammars(make_tokenizer()).matcher(WORDS)).masks
    calls = []

    def failing(self: object, drafted: Sequence[int] = ()) -> object:
        calls.append(self)
        if self is calls[0] and len(calls) > 6:
            raise GrammarError("the grammar cannot continue")
        return original(self, drafted)  # type: ignore[arg-type]

    monkeypatch.setattr(type(Grammars(make_tokenizer()).matcher(WORDS)), "masks", failing)
    first, *others = [ask(engine, one) for one in asked]
    assert "the grammar cannot continue" in first.failed().message
    assert [list(one.finished().tokens) for one in others] == plain[1:]
