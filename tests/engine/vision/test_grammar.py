"""Answers about pictures match their grammar, and drafts under it change none of their tokens."""

import json
from dataclasses import replace

import jsonschema
import pytest

from reprise.engine.interface.request import DraftChoice, GenerationRequest, Grammar
from reprise.engine.speculative.proposers import DraftSources
from tests.combinations import spread
from tests.drafters.fakes import scored
from tests.engine.driven import Driven
from tests.engine.sampling.test_grammar import PAIR, PERSON, SCHEMA, WORDS
from tests.engine.support import make_tokenizer, prompt_of
from tests.engine.test_every_cache import Mixed, alone, keys_of
from tests.engine.vision.seeing import CONFIGS, Picture, looked_at, seeing

BREAKS = ("mistral3", "pixtral")
GRAMMARS: tuple[Grammar | None, ...] = (PERSON, WORDS, None, PAIR, PERSON, None)
SOME = ("qwen3_vl", "gemma3")


def constrained(name: str, temperature: float) -> list[GenerationRequest]:
    """Make requests with a picture and a grammar each; one has no picture, and two no grammar."""
    asked = []
    for at, grammar in enumerate(GRAMMARS):
        parts = [prompt_of(4 + 5 * at, at), *([Picture(at, 2 + at % 2)] if at != 3 else []), prompt_of(6, at)]
        sampling = {"temperature": temperature, "seed": at, "max_tokens": 120 if grammar else 30}
        one = looked_at(*parts, name=str(at), breaks=name in BREAKS, **sampling)
        asked.append(replace(one, grammar=grammar))
    return asked


def answers(driven: Driven, asked: list[GenerationRequest]) -> list[list[int]]:
    told = [driven.ask(one) for one in asked]
    driven.finish()
    return [list(one.finished().tokens) for one in told]


@pytest.mark.parametrize(
    ("name", "temperature"),
    [
        pytest.param(*one.values, id=one.id, marks=[] if one.values[0] in SOME else [pytest.mark.slow])
        for one in spread(list(CONFIGS), [0.0, 0.8])
    ],
)
def test_answers_about_pictures_match_their_grammar_and_drafts_change_none(
    name: str, temperature: float
) -> None:
    asked, loaded = constrained(name, temperature), seeing(name)
    tell = alone(loaded)
    plain = [tell(replace(one, draft=DraftChoice("none"))) for one in asked]
    texts = [make_tokenizer().decode(tokens[:-1]) for tokens in plain]
    for at in (0, 4):
        jsonschema.validate(json.loads(texts[at]), SCHEMA)
    assert set(texts[1].split()) <= {"red", "green", "blue"}
    assert texts[3][0] + texts[3][-1] == "<>"
    # What the grammar forces is drafted, in a batch and for each alone.
    assert answers(Driven(replace(loaded)), asked) == plain
    assert [answers(Driven(replace(loaded)), [one])[0] for one in asked] == plain
    # Other drafts are cut to what it allows: those of an oracle, a liar and a coin.
    drafter = Mixed(dict(zip(map(keys_of, asked), plain, strict=True)), 0.0, num_ids=4096, name="suffix")
    drafted = Driven(
        replace(loaded),
        lambda _: DraftSources({"suffix": drafter}, scored(1.0)),
        draft_type="suffix",
        gate="off",
        prefill_chunk_tokens=7,
    )
    told = [drafted.ask(one) for one in asked]
    drafted.finish()
    ends = [one.finished() for one in told]
    assert [list(end.tokens) for end in ends] == plain
    accepted = {source for end in ends for source, _, right in end.usage.drafting.by_source if right}
    assert accepted == {"suffix", "grammar"}


def test_another_picture_gets_another_answer_of_the_same_schema() -> None:
    asked = [
        replace(
            looked_at(prompt_of(5), Picture(seed), prompt_of(4), name=str(seed), max_tokens=120),
            grammar=PERSON,
        )
        for seed in range(4)
    ]
    texts = [
        make_tokenizer().decode(tokens[:-1]) for tokens in answers(Driven(replace(seeing("gemma3"))), asked)
    ]
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert len(set(texts)) > 1
