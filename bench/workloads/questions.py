"""Questions about JSON records and text, an agent's tool calls, and requests where copying does not help."""

import json
import random
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from reprise.bench.workloads.agents import call_text, tool_of
from reprise.bench.workloads.chats import Grow, Message, Turn, Workload, conversation, user
from reprise.bench.workloads.words import ADJECTIVES, FIELDS, NAMES, NOUNS, VERBS, names, number, value

NUM_QUESTIONS, NUM_TOOLS = 3, 3
NUM_SUMS, NUM_ENTRIES, NUM_WORDS = 8, 24, 48
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
Sentence = tuple[str, str]  # and the person that it is about


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


def _extraction(rng: random.Random, _: Grow) -> Sequence[Turn]:
    values = {field: value(rng) for field in rng.sample(FIELDS, 5)}
    text, whole = {"type": "string"}, {"type": "integer"}
    types = {key: whole if isinstance(content, int) else text for key, content in values.items()}
    shown = {"type": "object", "properties": types}
    limited = {key: kind | ({"maxLength": 40} if kind is text else {}) for key, kind in types.items()}
    enforced = shown | {"properties": limited, "required": list(values), "additionalProperties": False}
    facts = ", ".join(f"{key}: {content}" for key, content in values.items())
    request = f"Make a JSON object for this schema: {json.dumps(shown)}\nThe values: {facts}."
    return [Turn((user(request),), json.dumps(values), schema=json.dumps(enforced))]


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


def _summary(rng: random.Random, _: Grow) -> Sequence[Turn]:
    sentences = list(islice(_sentences(rng), 21))
    quoted = [sentences[at] for at in sorted(rng.sample(range(21), 4))]
    *people, last = [person for _, person in quoted]
    request = (
        f"Summarize the text for {', '.join(people)} and {last}: one line for each of them, that "
        "begins with the name and quotes the sentence."
    )
    answer = "\n".join(f'- {person}: "{text}"' for text, person in quoted)
    return conversation([(request, answer)], _joined(sentences))


def _tool(rng: random.Random, verb: str, noun: str, fields: Sequence[str]) -> dict[str, Any]:
    about = rng.choice((f"Use this to {verb} a {noun}.", f"{verb.capitalize()} the {noun}."))
    return tool_of(f"{verb}_{noun}", about, fields)


def _agent(rng: random.Random, _: Grow) -> Sequence[Turn]:
    verbs, nouns = rng.sample(VERBS, NUM_TOOLS), rng.sample(NOUNS, NUM_TOOLS)
    taken = [rng.sample(FIELDS, 2) for _ in verbs]
    tools = tuple(map(partial(_tool, rng), verbs, nouns, taken))
    messages, turns, plans = list[Message](), list[Turn](), list[str]()
    known: dict[str, str] = {}

    def ask(reference: str) -> None:
        turns.append(Turn(tuple(messages), reference, tools=tools))

    for at, (tool, fields) in enumerate(zip(tools, taken, strict=True)):
        name, number = tool["function"]["name"], f"call_{at + 1}"
        # Arguments come from the previous tool's result if it has the field.
        arguments = {field: known.get(field) or _word(rng) for field in fields}
        call = {"name": name, "arguments": json.dumps(arguments)}
        facts = " and ".join(f"{field} {text}" for field, text in arguments.items())
        messages.append(user(f"Use {name} with {facts}."))
        ask(call_text(name, arguments))
        known = {field: _word(rng) for field in taken[(at + 1) % NUM_TOOLS]}
        result = known | {field: value(rng) for field in rng.sample(FIELDS, 4) if field not in known}
        made = {"id": number, "type": "function", "function": call}
        messages.append({"role": "assistant", "content": "", "tool_calls": [made]})
        messages.append({"role": "tool", "content": json.dumps(result), "tool_call_id": number})
        plans.append(f"{name} returned: {', '.join(f'{key} is {said}' for key, said in result.items())}.")
        ask(plans[-1])
        messages.append({"role": "assistant", "content": plans[-1]})
    messages.append(user("Now list all results as the steps of a plan."))
    ask("\n".join(f"{at}. {plan}" for at, plan in enumerate(plans, 1)))
    return turns


def _word(rng: random.Random) -> str:
    while not isinstance(word := value(rng), str):
        pass
    return word


def _story(rng: random.Random, _: Grow, **more: Any) -> Sequence[Turn]:
    return [Turn((user(f"Write about the {rng.choice(NOUNS)}."),), None, is_endless=True, **more)]


def _arithmetic(rng: random.Random, _: Grow) -> Sequence[Turn]:
    sums = [(rng.randrange(100, 1000), rng.choice("+-"), rng.randrange(10, 100)) for _ in range(NUM_SUMS)]
    answers = (left + right if sign == "+" else left - right for left, sign, right in sums)
    listed = "\n".join(f"{left} {sign} {right}" for left, sign, right in sums)
    request = "Compute each line. Answer with the results alone, one in each line."
    return conversation([(request, "\n".join(map(str, answers)))], listed)


def _remap(rng: random.Random, _: Grow) -> Sequence[Turn]:
    meaning = dict(zip(rng.sample(NOUNS, NUM_ENTRIES), rng.sample(NAMES, NUM_ENTRIES), strict=True))
    text = [rng.choice(list(meaning)) for _ in range(NUM_WORDS)]
    entries = "\n".join(f"{word}: {other}" for word, other in meaning.items())
    request = f"Translate the text word by word. These are the words:\n\n{entries}"
    asked = request, " ".join(meaning[word] for word in text)
    return conversation([asked], f"The text: {' '.join(text)}")


LOOKUPS = (
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
OTHERS = (
    Workload("agent",
             "three chained tool calls with arguments from earlier results, which are then listed as a plan",
             _agent),
    Workload("free", "random text at temperature 1.5, nothing to copy", partial(_story, temperature=1.5)),
    Workload("arithmetic", f"{NUM_SUMS} sums, whose results do not occur in the prompt", _arithmetic),
    Workload("remap", f"{NUM_WORDS} words translated one by one with a list of {NUM_ENTRIES}", _remap),
    Workload("trap", "random draws from 12 tokens: every short n-gram repeats, but predicts nothing",
             partial(_story, num_allowed=12)),
)  # fmt: skip
