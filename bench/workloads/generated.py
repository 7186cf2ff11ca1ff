"""Generated chats: edits of source files, questions about records and text, and what cannot be copied.

The bundled model was trained on these words. Names have no meaning, so a model can only copy them.
"""

import json
import keyword
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from reprise.bench import lexicon
from reprise.bench.workloads.agents import ANSWERS, Answer, Change, agent_turns
from reprise.bench.workloads.chats import Grow, Turn, Workload, conversation, user

NOUNS, ADJECTIVES, VERBS = lexicon.NOUNS[:180], lexicon.ADJECTIVES[:60], lexicon.VERBS[:80]
FIELDS, NAMES = lexicon.FIELDS, lexicon.NAMES[:240]
IDENTIFIER_WORDS = sorted({*NOUNS, *ADJECTIVES, *VERBS} - set(keyword.kwlist))
WHOLE = "Answer with the whole file."
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

Kind = Callable[[str, random.Random], tuple[str, str]]  # changes a file: returns a request and the result
Statement = tuple[str, str]  # one or more lines, and what to add if the file ends here
Record = dict[str, Any]
Sentence = tuple[str, str]  # and the person that it is about


def names(rng: random.Random) -> Iterator[str]:
    """Yield people's names, none part of another: single words first, then pairs of other words."""
    single, paired = NAMES[:160], NAMES[160:]
    yield from rng.sample(single, len(single))
    yield from _distinct(lambda: " ".join(rng.sample(paired, 2)))


def identifiers(rng: random.Random) -> Iterator[str]:
    """Yield distinct identifiers of one or two words."""
    return _distinct(lambda: "_".join(rng.sample(IDENTIFIER_WORDS, rng.choice((1, 1, 2)))))


def thing(rng: random.Random) -> str:
    """Return an adjective and a noun."""
    return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"


def number(rng: random.Random) -> int:
    """Return a whole number of up to four digits."""
    return rng.randrange(rng.choice((10, 100, 100, 100, 1000, 10000)))


def value(rng: random.Random) -> str | int:
    """Return a value for a field: a name, a word, two words or a number."""
    kind = rng.random()
    if kind < 0.45:
        return str(rng.choice(NAMES if kind < 0.3 else NOUNS))
    return thing(rng) if kind < 0.6 else number(rng)


def _distinct(make: Callable[[], str]) -> Iterator[str]:
    """Yield the results of make without repetitions."""
    seen: set[str] = set()
    while True:
        if (made := make()) not in seen:
            seen.add(made)
            yield made


def _statements(rng: random.Random) -> Iterator[Statement]:
    """Yield the statements of a random file: constants and functions in turn."""
    rng = random.Random(rng.random())
    unused = identifiers(rng)
    gap = ""
    while True:
        for _ in range(rng.randint(1, 4)):
            target = next(unused)
            literal = str(number(rng)) if rng.random() < 0.7 else f'"{value(rng)}"'
            yield f"{gap}{target} = {literal}", ""
            gap = ""
        name = next(unused)
        known = [next(unused) for _ in range(rng.choice((1, 2)))]
        opening = f"\ndef {name}({', '.join(known)}):\n"
        count = rng.randint(1, 4)
        for at in range(count):
            target = next(unused)
            text = f"{'' if at else opening}    {target} = {_expression(rng, known)}"
            known.append(target)
            closing = f"\n    return {_expression(rng, known)}"
            yield (text, closing) if at < count - 1 else (text + closing, "")
        gap = "\n"


def _expression(rng: random.Random, known: Sequence[str]) -> str:
    kind, left = rng.random(), rng.choice(known)
    if kind < 0.4:
        return f"{left} {rng.choice('+-*')} {number(rng)}"
    if kind < 0.8:
        return f"{left} {rng.choice('+-*')} {rng.choice(known)}"
    return f'{left}["{rng.choice(NOUNS)}"]'


def _file(statements: Iterable[Statement]) -> str:
    lines, closings = zip(*statements, strict=True)
    return "\n".join(["```python", *lines]) + f"{closings[-1]}\n```"


def _constants(file: str) -> list[tuple[str, str]]:
    return re.findall(r"(?m)^(\w+) = (.*)$", file)


def _set_value(file: str, name: str, new: str | int) -> str:
    return re.sub(rf"(?m)^{name} = .*", f"{name} = {new}", file)


def _value(file: str, rng: random.Random) -> tuple[str, str]:
    name, old = rng.choice(_constants(file))
    new = _other_than(old, make=lambda: str(number(rng)))
    asked = (f"Set {name} to {new}.", f"Change {name} to {new}.", f"Change {name} from {old} to {new}.")
    return rng.choice(asked), _set_value(file, name, new)


def _rename(file: str, rng: random.Random) -> tuple[str, str]:
    names = [name for name, _ in _constants(file)]
    names += re.findall(r"(?m)^def (\w+)", file) + re.findall(r"(?m)^    (\w+) = ", file)
    old = rng.choice(names)
    new = _other_than(*names, "python", make=lambda: next(identifiers(rng)))
    everywhere = f"Replace {old} with {new} everywhere."
    asked = (f"Rename {old} to {new}.", f"Change the name {old} to {new}.", everywhere)
    return rng.choice(asked), re.sub(rf"\b{old}\b", new, file)


def _other_than(*old: str, make: Callable[[], str]) -> str:
    while (new := make()) in old:
        pass
    return new


KINDS = (_value, _rename)


def _edits(file: str, rng: random.Random, num_turns: int, kinds: Sequence[Kind] = KINDS) -> list[Turn]:
    """Make a chat about one file, in which each turn changes the previous answer."""
    changed, exchanges = file, []
    for _ in range(num_turns):
        kind = rng.choice(kinds)
        request, changed = kind(changed, rng)
        exchanges.append((f"{request} {WHOLE}", changed))
    return conversation(exchanges, file)


def _agent_edits(rng: random.Random, _: Grow) -> Iterator[Turn]:
    """Yield an agent's turns about a file that it has read: two edits, then it writes the whole file."""
    file, steps = _file(islice(_statements(rng), 11)), list[tuple[str, Answer]]()
    made = first = Change("", "", f"{next(identifiers(rng))}.py", "", _bare(file))
    for form in ("edit", "edit", "write"):
        request, file = _value(file, rng)
        made = replace(made, before=made.after, after=_bare(file))
        steps += [(request, answer) for answer in ANSWERS[form](made)]
    yield from agent_turns(f"Read {made.path}.", replace(first, before=first.after), "arrow", steps)


def _bare(file: str) -> str:
    """Return a file without the fence around it."""
    return "\n".join(file.split("\n")[1:-1]) + "\n"


def _grown(statements: Iterator[Statement], grow: Grow) -> str:
    return _file(grow(statements, lambda first: f"Set lantern to 100. {WHOLE}\n\n{_file(first)}"))


def _records(rng: random.Random, num_fields: int) -> Iterator[Record]:
    fields = rng.sample(FIELDS[1:], num_fields)
    for name in names(rng):
        yield {"name": name} | {field: value(rng) for field in fields}


def _as_lines(records: Sequence[Record]) -> str:
    return "\n".join(json.dumps(record) for record in records)


def _one_record(rng: random.Random, _: Grow) -> Sequence[Turn]:
    record = rng.choice(records := list(islice(_records(rng, 4), 6)))
    asked = f"Return the record of {record['name']} as JSON.", json.dumps(record)
    return conversation([asked], _as_lines(records))


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


def _sentences(rng: random.Random) -> Iterator[Sentence]:
    people = names(rng)
    while True:
        for pattern in rng.sample(SENTENCES, len(SENTENCES)):
            who, other = next(people), next(people)
            noun, place, last = rng.sample(NOUNS, 3)
            fill = {"noun": noun, "place": place, "thing": f"{rng.choice(ADJECTIVES)} {last}"}
            yield pattern.format(who=who, other=other, number=number(rng), **fill), who


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
    return conversation([("Repeat the text.", text)], text)


def _story(rng: random.Random, _: Grow, **more: Any) -> Sequence[Turn]:
    return [Turn((user(f"Write about the {rng.choice(NOUNS)}."),), None, is_endless=True, **more)]


def _words(rng: random.Random, grow: Grow) -> Sequence[Turn]:
    """Make a prompt of random words; it begins with a number, so that no prefix cache has more than that."""

    def made() -> Iterator[str]:
        yield str(rng.randrange(10**6, 10**7))
        while True:
            yield rng.choice(IDENTIFIER_WORDS)

    return [Turn((user(" ".join(grow(made(), " ".join))),), None, is_endless=True)]


WORKLOADS = {one.name: one for one in (
    Workload("records", "one of six records, returned as JSON", _one_record),
    Workload("json_rag", "three questions about JSON records of the given length; answers quote the record",
             _json_rag, (600, 800)),
    Workload("quotes", "one short sentence quoted out of six",
             lambda rng, _: _quotes(list(islice(_sentences(rng), 6)), rng, 1)),
    Workload("passages", "six sentences repeated in full", _repeat),
    Workload("passage", "three sentences quoted, one by one, from a text of the given length", _passage,
             (600, 800)),
    Workload("edits", "a file of about 20 lines with one value changed, answered in full",
             lambda rng, _: _edits(_file(islice(_statements(rng), 11)), rng, 1, (_value,))),
    Workload("code", "one change in a file of the given length, answered in full",
             lambda rng, grow: _edits(_grown(_statements(rng), grow), rng, 1), (600, 800)),
    Workload("edits_short", "a snippet of about ten lines, edited in six turns, each answered in full",
             lambda rng, _: _edits(_file(islice(_statements(rng), 6)), rng, 6)),
    Workload("free", "random text at temperature 1.5, nothing to copy", partial(_story, temperature=1.5)),
    Workload("trap", "random draws from 12 tokens: every short n-gram repeats, but predicts nothing",
             partial(_story, num_allowed=12)),
)}  # fmt: skip
"""All workloads, by name."""
ENGLISH = tuple(WORKLOADS)
"""Workloads that the bundled model was trained for, as far as a model can be."""
WORKLOADS |= {one.name: one for one in (
    Workload("agent_edits", "a file read with line numbers, edited twice and then written, by tool calls",
             _agent_edits),
    Workload("words", "random words of the given length, answered in full length", _words, (256,)),
)}  # fmt: skip
