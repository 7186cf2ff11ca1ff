"""Questions about JSON records, and JSON that follows a schema."""

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from bench.workloads.chats import Grow, Message, Turn, Workload, assistant, single_turn, user
from bench.workloads.words import FIELDS, Supply, names, value

NUM_QUESTIONS = 3
MAX_RECORDS = 20_000


def _made(rng: random.Random, num_fields: int) -> Iterator[dict[str, Any]]:
    """Yield records with the same fields and distinct names."""
    fields = rng.sample(FIELDS[1:], num_fields)
    for name in names(rng):
        yield {"name": name} | {field: value(rng) for field in fields}


def _as_lines(records: Sequence[dict[str, Any]]) -> str:
    return "\n".join(json.dumps(record) for record in records)


def _records(rng: random.Random, _: Grow) -> Sequence[Turn]:
    records = Supply(_made(rng, 4)).first(6)
    record = rng.choice(records)
    return [
        single_turn(
            f"Return the record of {record['name']} as JSON.\n\n{_as_lines(records)}", json.dumps(record)
        )
    ]


def _json_rag(rng: random.Random, grow: Grow) -> Sequence[Turn]:
    supply = Supply(_made(random.Random(rng.random()), rng.randint(4, 6)))
    count = grow(lambda count: f"What is the color of ?\n\n{_as_lines(supply.first(count))}", MAX_RECORDS)
    records = supply.first(count)
    messages: tuple[Message, ...] = ()
    turns: list[Turn] = []
    for at in range(NUM_QUESTIONS):
        question, answer = _question(rng, rng.choice(records))
        messages = (*messages, user(question if at else f"{question}\n\n{_as_lines(records)}"))
        turns.append(Turn(messages, answer))
        messages = (*messages, assistant(answer))
    return turns


def _question(rng: random.Random, record: dict[str, Any]) -> tuple[str, str]:
    """Return a question about a record, and the answer, which quotes it."""
    name, quoted = record["name"], json.dumps(record)
    if rng.random() < 0.4:
        return f"Return the record of {name} as JSON.", quoted
    field = rng.choice([key for key in record if key != "name"])
    request = rng.choice(("What is the {field} of {name}?", "What {field} does {name} have?"))
    return request.format(field=field, name=name), f"{quoted}\nThe {field} of {name} is {record[field]}."


def _extraction(rng: random.Random, _: Grow) -> Sequence[Turn]:
    values = {field: value(rng) for field in rng.sample(FIELDS, 5)}
    types = {key: "integer" if isinstance(content, int) else "string" for key, content in values.items()}
    shown = {"type": "object", "properties": {key: {"type": kind} for key, kind in types.items()}}
    enforced = {
        "type": "object",
        "properties": {
            key: {"type": kind} if kind == "integer" else {"type": kind, "maxLength": 40}
            for key, kind in types.items()
        },
        "required": list(values),
        "additionalProperties": False,
    }
    facts = ", ".join(f"{key}: {content}" for key, content in values.items())
    text = f"Make a JSON object for this schema: {json.dumps(shown)}\nThe values: {facts}."
    return [single_turn(text, json.dumps(values), schema=json.dumps(enforced))]


WORKLOADS = (
    Workload("records", "one of six records, returned as JSON", _records),
    Workload(
        "json_rag",
        "three questions about JSON records of the given length; answers quote the record",
        _json_rag,
        (600, 800),
    ),
    Workload("extraction", "five values as JSON, constrained by a schema", _extraction),
)
