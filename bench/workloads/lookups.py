"""JSON records and text, to be quoted, repeated or asked about."""

import json
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from bench.workloads.chats import Grow, Turn, Workload, conversation, single_turn
from bench.workloads.words import ADJECTIVES, FIELDS, NOUNS, names, number, value

NUM_QUESTIONS = 3
SENTENCES = [
    "{who} found the {thing} in the {place}.",
    "{who} bought the {thing} for {number} coins from {other}.",
    "{who} lives in a {thing} behind the {place}.",
    "{who} met {other} near the {thing}.",
    "{who} painted the {noun} of {other} on day {number}.",
    "{who} has a {thing} and a {place}.",
    "{who} said that the {noun} is {number} years old.",
    "{who} wants to sell the {thing} with {other}.",
]

Record = dict[str, Any]
Sentence = tuple[str, str]
"""One sentence, and the person that it is about."""


def _records(rng: random.Random, num_fields: int) -> Iterator[Record]:
    """Yield records with the same fields and distinct names."""
    fields = rng.sample(FIELDS[1:], num_fields)
    for name in names(rng):
        yield {"name": name} | {field: value(rng) for field in fields}


def _as_lines(records: Sequence[Record]) -> str:
    return "\n".join(json.dumps(record) for record in records)


def _one_record(rng: random.Random, _: Grow) -> Sequence[Turn]:
    record = rng.choice(records := list(islice(_records(rng, 4), 6)))
    request = f"Return the record of {record['name']} as JSON.\n\n{_as_lines(records)}"
    return single_turn(request, json.dumps(record))


def _json_rag(rng: random.Random, grow: Grow) -> Sequence[Turn]:
    made = _records(random.Random(rng.random()), rng.randint(4, 6))
    records = grow(made, lambda first: f"What is the color of ?\n\n{_as_lines(first)}")
    asked = (_question(rng, rng.choice(records)) for _ in range(NUM_QUESTIONS))
    return conversation(asked, _as_lines(records))


def _question(rng: random.Random, record: Record) -> tuple[str, str]:
    """Return a question about a record, and the answer, which quotes it."""
    name, quoted = record["name"], json.dumps(record)
    if rng.random() < 0.4:
        return f"Return the record of {name} as JSON.", quoted
    field = rng.choice([key for key in record if key != "name"])
    request = rng.choice((f"What is the {field} of {name}?", f"What {field} does {name} have?"))
    return request, f"{quoted}\nThe {field} of {name} is {record[field]}."


def _extraction(rng: random.Random, _: Grow) -> Sequence[Turn]:
    values = {field: value(rng) for field in rng.sample(FIELDS, 5)}
    text, whole = {"type": "string"}, {"type": "integer"}
    types = {key: whole if isinstance(content, int) else text for key, content in values.items()}
    shown = {"type": "object", "properties": types}
    limited = {key: kind | ({"maxLength": 40} if kind is text else {}) for key, kind in types.items()}
    enforced = {
        "type": "object", "properties": limited, "required": list(values), "additionalProperties": False,
    }  # fmt: skip
    facts = ", ".join(f"{key}: {content}" for key, content in values.items())
    request = f"Make a JSON object for this schema: {json.dumps(shown)}\nThe values: {facts}."
    return single_turn(request, json.dumps(values), schema=json.dumps(enforced))


def _sentences(rng: random.Random) -> Iterator[Sentence]:
    people = names(rng)
    while True:
        for pattern in rng.sample(SENTENCES, len(SENTENCES)):
            who, other = next(people), next(people)
            noun, place, last = rng.sample(NOUNS, 3)
            thing = f"{rng.choice(ADJECTIVES)} {last}"
            fill = {"noun": noun, "place": place, "thing": thing, "number": number(rng)}
            yield pattern.format(who=who, other=other, **fill), who


def _joined(sentences: Sequence[Sentence]) -> str:
    """Join sentences into paragraphs of seven."""
    texts = [text for text, _ in sentences]
    return "\n\n".join(" ".join(texts[at : at + 7]) for at in range(0, len(texts), 7))


def _passage(rng: random.Random, grow: Grow) -> Sequence[Turn]:
    made = _sentences(random.Random(rng.random()))
    sentences = grow(made, lambda first: f"Quote the sentence that mentions .\n\n{_joined(first)}")
    return _quotes(sentences, rng, NUM_QUESTIONS)


def _quotes(sentences: Sequence[Sentence], rng: random.Random, num_turns: int) -> list[Turn]:
    chosen = (rng.choice(sentences) for _ in range(num_turns))
    asked = ((f"Quote the sentence that mentions {person}.", f'"{text}"') for text, person in chosen)
    return conversation(asked, _joined(sentences))


def _repeat(rng: random.Random, _: Grow) -> Sequence[Turn]:
    text = _joined(list(islice(_sentences(rng), 6)))
    return single_turn(f"Repeat the text.\n\n{text}", text)


def _summary(rng: random.Random, _: Grow) -> Sequence[Turn]:
    sentences = list(islice(_sentences(rng), 21))
    quoted = [sentences[at] for at in sorted(rng.sample(range(21), 4))]
    *people, last = [person for _, person in quoted]
    request = (
        f"Summarize the text for {', '.join(people)} and {last}: one line for each of them, that "
        "begins with the name and quotes the sentence."
    )
    answer = "\n".join(f'- {person}: "{text}"' for text, person in quoted)
    return single_turn(f"{request}\n\n{_joined(sentences)}", answer)


WORKLOADS = (
    Workload("records", "one of six records, returned as JSON", _one_record),
    Workload("json_rag", "three questions about JSON records of the given length; answers quote the record",
             _json_rag, (600, 800)),
    Workload("extraction", "five values as JSON, constrained by a schema", _extraction),
    Workload("quotes", "one short sentence quoted out of six",
             lambda rng, _: _quotes(list(islice(_sentences(rng), 6)), rng, 1)),
    Workload("passages", "six sentences repeated in full", _repeat),
    Workload("passage", "three sentences quoted, one by one, from a text of the given length", _passage,
             (600, 800)),
    Workload("summary", "four people of a text of 21 sentences, each with a quote", _summary),
)  # fmt: skip
