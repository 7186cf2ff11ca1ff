"""Chats to decode: generated from a seed, the same for whoever runs them. VERSION changes when they do."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

VERSION = 1
COLD = "-cold"


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


@dataclass(frozen=True, slots=True)
class Case:
    """One chat. before: a chat that is to be answered first, for what it leaves in memory.

    temperature: of the sampling. num_allowed: if not 0, so many token ids are drawn from, all alike.
    is_endless: the end of the answer is forbidden, so that it has all tokens it may have.
    schema: JSON schema that the answer with drafts must keep to; the one that it is compared with is free.
    """

    text: str
    before: str | None = None
    temperature: float = 0.0
    num_allowed: int = 0
    is_endless: bool = False
    schema: str | None = None


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


def _edit(rng: random.Random) -> Case:
    file, constant = _file(rng)
    return Case(f"Set {constant} to {rng.randrange(100, 999)}. Answer with the whole file.\n\n{file}")


def _edit_again(rng: random.Random) -> Case:
    file, constant = _file(rng)
    first, second = rng.sample(range(100, 999), 2)
    return Case(f"Change {constant} to {second}.\n\n{file}", before=f"Set {constant} to {first}.\n\n{file}")


def _edit_again_cold(rng: random.Random) -> Case:
    return replace(_edit_again(rng), before=None)


def _records(rng: random.Random) -> Case:
    fields = rng.sample(FIELDS, 4)
    records = [
        {"name": who, **{field: rng.choice([rng.choice(WORDS), rng.randrange(100)]) for field in fields}}
        for who in rng.sample(PEOPLE, 6)
    ]
    who = rng.choice(records)["name"]
    document = "\n".join(json.dumps(record) for record in records)
    return Case(f"Return the record of {who} as JSON.\n\n{document}")


def _extraction(rng: random.Random) -> Case:
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
    return Case(text, schema=json.dumps(schema))


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


def _quote(rng: random.Random) -> Case:
    sentences, people = _sentences(rng)
    return Case(f"Quote the sentence that mentions {rng.choice(people)}.\n\n{' '.join(sentences)}")


def _passage(rng: random.Random) -> Case:
    return Case(f"Repeat the text.\n\n{' '.join(_sentences(rng)[0])}")


def _free(rng: random.Random) -> Case:
    return Case(f"Write about the {rng.choice(WORDS)}.", temperature=1.5, is_endless=True)


def _trap(rng: random.Random) -> Case:
    return Case(f"Write about the {rng.choice(WORDS)}.", num_allowed=12, is_endless=True)


WORKLOADS: dict[str, tuple[Callable[[random.Random], Case], str]] = {
    "edits": (_edit, "whole files of about 20 lines with one value changed"),
    "edits-again": (_edit_again, "the same, after another edit of the same file"),
    "edits-again-cold": (_edit_again_cold, "the very same chats, without the one before"),
    "records": (_records, "a record looked up among six, as JSON"),
    "quotes": (_quote, "one short sentence quoted out of six"),
    "passages": (_passage, "six sentences quoted in full"),
    "extraction": (_extraction, "five values as JSON by a schema, against the same chats without the schema"),
    "free": (_free, "random text at temperature 1.5, nothing to copy"),
    "trap": (_trap, "random draws from a dozen tokens: every short n-gram was seen, none says what follows"),
}
"""Name -> (what makes a case, what it is)."""


def make_cases(workload: str, count: int, seed: int) -> Sequence[Case]:
    """count cases of a workload. Raises KeyError for one that is unknown."""
    rng = random.Random(f"{workload.removesuffix(COLD)} {seed}")
    return [WORKLOADS[workload][0](rng) for _ in range(count)]
