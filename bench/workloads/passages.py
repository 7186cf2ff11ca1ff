"""Texts to quote from or to repeat."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.workloads.chats import Grow, Message, Turn, Workload, assistant, single_turn, user
from bench.workloads.words import ADJECTIVES, NOUNS, Supply, names, number

NUM_QUOTES = 3
MAX_SENTENCES = 20_000
PATTERNS = (
    "{who} found the {thing} in the {place}.", "{who} bought the {thing} for {number} coins from {other}.",
    "{who} lives in a {thing} behind the {place}.", "{who} met {other} near the {thing}.",
    "{who} painted the {noun} of {other} on day {number}.", "{who} has a {thing} and a {place}.",
    "{who} said that the {noun} is {number} years old.", "{who} wants to sell the {thing} with {other}.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, and the person that it is about."""

    text: str
    person: str


def _sentences(rng: random.Random) -> Iterator[Sentence]:
    people = names(rng)
    while True:
        for pattern in rng.sample(PATTERNS, len(PATTERNS)):
            who, other = next(people), next(people)
            noun, place, last = rng.sample(NOUNS, 3)
            thing = f"{rng.choice(ADJECTIVES)} {last}"
            fill = {"noun": noun, "place": place, "thing": thing, "number": number(rng)}
            yield Sentence(pattern.format(who=who, other=other, **fill), who)


def _joined(sentences: Sequence[Sentence]) -> str:
    """Join sentences into paragraphs of seven."""
    paragraphs = [sentences[at : at + 7] for at in range(0, len(sentences), 7)]
    return "\n\n".join(" ".join(one.text for one in paragraph) for paragraph in paragraphs)


def _quote(rng: random.Random, _: Grow) -> Sequence[Turn]:
    return _quotes(Supply(_sentences(rng)).first(6), rng, 1)


def _passage(rng: random.Random, grow: Grow) -> Sequence[Turn]:
    supply = Supply(_sentences(random.Random(rng.random())))
    count = grow(
        lambda count: f"Quote the sentence that mentions .\n\n{_joined(supply.first(count))}", MAX_SENTENCES
    )
    return _quotes(supply.first(count), rng, NUM_QUOTES)


def _quotes(sentences: Sequence[Sentence], rng: random.Random, num_turns: int) -> list[Turn]:
    messages: tuple[Message, ...] = ()
    turns: list[Turn] = []
    for at in range(num_turns):
        sentence = rng.choice(sentences)
        request = f"Quote the sentence that mentions {sentence.person}."
        messages = (*messages, user(request if at else f"{request}\n\n{_joined(sentences)}"))
        turns.append(Turn(messages, f'"{sentence.text}"'))
        messages = (*messages, assistant(f'"{sentence.text}"'))
    return turns


def _repeat(rng: random.Random, _: Grow) -> Sequence[Turn]:
    text = _joined(Supply(_sentences(rng)).first(6))
    return [single_turn(f"Repeat the text.\n\n{text}", text)]


def _summary(rng: random.Random, _: Grow) -> Sequence[Turn]:
    sentences = Supply(_sentences(rng)).first(21)
    quoted = sorted(rng.sample(range(len(sentences)), 4))
    people = [sentences[at].person for at in quoted]
    request = (
        f"Summarize the text for {', '.join(people[:-1])} and {people[-1]}: one line for each of them, that "
        "begins with the name and quotes the sentence."
    )
    answer = "\n".join(f'- {sentences[at].person}: "{sentences[at].text}"' for at in quoted)
    return [single_turn(f"{request}\n\n{_joined(sentences)}", answer)]


WORKLOADS = (
    Workload("quotes", "one short sentence quoted out of six", _quote),
    Workload("passages", "six sentences repeated in full", _repeat),
    Workload(
        "passage", "three sentences quoted, one by one, from a text of the given length", _passage, (600, 800)
    ),
    Workload("summary", "four people of a text of 21 sentences, each with a quote", _summary),
)
