"""The workloads of version 1."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace

from bench.workloads.chats import Grow, Turn, Workload, ask


def _words(text: str) -> list[str]:
    return text.split()


WORDS = _words("""
lantern bridge harbor garden engine basket window river valley market ladder hammer anchor bottle candle
castle circle copper cotton desert dragon falcon feather forest fountain granite helmet island jacket
journal kettle letter library magnet marble meadow mirror mountain needle ocean orchard palace pencil
pepper piano pillow planet pocket
""")
PEOPLE = _words("""
Gudrirt Vequim Pipox Migon Druste Mucle Pata Fodre Muku Kegra Stohund Kikler
""")
FIELDS = _words("""
city color size price weight height owner role team status level score
""")


def _names(rng: random.Random, count: int) -> list[str]:
    first, second = rng.sample(WORDS, count), rng.sample(WORDS, count)
    return [a if rng.random() < 0.5 or a == b else f"{a}_{b}" for a, b in zip(first, second, strict=True)]


def _file(rng: random.Random, num_functions: int = 4) -> tuple[str, str]:
    """A Python file of about 20 lines, and the name of its first constant."""
    constant, *names = _names(rng, 1 + 5 * num_functions)
    lines = [f"{constant} = {rng.randrange(10, 99)}"]
    for at in range(num_functions):
        function, one, two, three, four = names[5 * at : 5 * at + 5]
        lines += ["", f"def {function}({one}, {two}):"]
        lines.append(f"    {three} = {one} {rng.choice('+-*')} {rng.randrange(10, 99)}")
        lines.append(f"    {four} = {three} {rng.choice('+-*')} {two}")
        lines.append(f"    return {four} {rng.choice('+-*')} {one}")
    return "```python\n" + "\n".join(lines) + "\n```", constant


def _set(constant: str, file: str, request: str, number: int) -> Turn:
    changed = re.sub(rf"(?m)^{constant} = .*", f"{constant} = {number}", file)
    return ask(f"{request}\n\n{file}", changed)


def _edit(rng: random.Random, _: Grow) -> Sequence[Turn]:
    file, constant = _file(rng)
    number = rng.randrange(100, 999)
    return [_set(constant, file, f"Set {constant} to {number}. Answer with the whole file.", number)]


def _edit_again(rng: random.Random, _: Grow) -> Sequence[Turn]:
    file, constant = _file(rng)
    first, second = rng.sample(range(100, 999), 2)
    before = _set(constant, file, f"Set {constant} to {first}.", first)
    return [
        replace(before, is_measured=False),
        _set(constant, file, f"Change {constant} to {second}.", second),
    ]


def _edit_again_cold(rng: random.Random, grow: Grow) -> Sequence[Turn]:
    return _edit_again(rng, grow)[1:]


def _records(rng: random.Random, _: Grow) -> Sequence[Turn]:
    fields = rng.sample(FIELDS, 4)
    records = [
        {"name": who, **{field: rng.choice([rng.choice(WORDS), rng.randrange(100)]) for field in fields}}
        for who in rng.sample(PEOPLE, 6)
    ]
    record = rng.choice(records)
    document = "\n".join(json.dumps(record) for record in records)
    return [ask(f"Return the record of {record['name']} as JSON.\n\n{document}", json.dumps(record))]


def _extraction(rng: random.Random, _: Grow) -> Sequence[Turn]:
    fields = rng.sample(FIELDS, 5)
    values = {field: rng.choice([rng.choice(WORDS), rng.randrange(100)]) for field in fields}
    properties = {
        key: {"type": "integer"} if isinstance(value, int) else {"type": "string", "maxLength": 40}
        for key, value in values.items()
    }
    schema = {"type": "object", "properties": properties, "required": fields, "additionalProperties": False}
    facts = ", ".join(f"{key}: {value}" for key, value in values.items())
    shown = json.dumps(
        {"type": "object", "properties": {k: {"type": p["type"]} for k, p in properties.items()}}
    )
    text = f"Make a JSON object for this schema: {shown}\nThe values: {facts}."
    return [ask(text, json.dumps(values), schema=json.dumps(schema))]


def _sentences(rng: random.Random) -> tuple[list[str], list[str]]:
    """Sentences of a passage, and whom each is about."""
    people, things = rng.sample(PEOPLE, 12), rng.sample(WORDS, 20)
    patterns = [
        "{who} found the {thing} in the {place}.",
        "{who} bought the {thing} for {number} coins from {other}.",
        "{who} lives in a {thing} behind the {place}.",
        "{who} met {other} near the {thing}.",
        "{who} painted the {thing} of {other} on day {number}.",
        "{who} has a {thing} and a {place}.",
    ]
    rng.shuffle(patterns)
    return [
        pattern.format(
            who=people[at],
            other=people[6 + at],
            thing=things[at],
            place=things[6 + at],
            number=rng.randrange(100),
        )
        for at, pattern in enumerate(patterns)
    ], people[:6]


def _quote(rng: random.Random, _: Grow) -> Sequence[Turn]:
    sentences, people = _sentences(rng)
    at = rng.randrange(len(people))
    request = f"Quote the sentence that mentions {people[at]}."
    return [ask(f"{request}\n\n{' '.join(sentences)}", f'"{sentences[at]}"')]


def _passage(rng: random.Random, _: Grow) -> Sequence[Turn]:
    text = " ".join(_sentences(rng)[0])
    return [ask(f"Repeat the text.\n\n{text}", text)]


def _free(rng: random.Random, _: Grow) -> Sequence[Turn]:
    return [ask(f"Write about the {rng.choice(WORDS)}.", temperature=1.5, is_endless=True)]


def _trap(rng: random.Random, _: Grow) -> Sequence[Turn]:
    return [ask(f"Write about the {rng.choice(WORDS)}.", num_allowed=12, is_endless=True)]


WORKLOADS = (
    Workload("edits", "whole files of about 20 lines with one value changed", _edit),
    Workload("edits_again", "the same, after another edit of the same file", _edit_again),
    Workload("edits_again_cold", "the very same chats, without the one before", _edit_again_cold),
    Workload("records", "a record looked up among six, as JSON", _records),
    Workload("quotes", "one short sentence quoted out of six", _quote),
    Workload("passages", "six sentences quoted in full", _passage),
    Workload("extraction", "five values as JSON, under a schema", _extraction),
    Workload("free", "random text at temperature 1.5, nothing to copy", _free),
    Workload(
        "trap", "random draws from a dozen tokens: every short n-gram was seen, none says what follows", _trap
    ),
)
