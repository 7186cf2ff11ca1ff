"""Samples of questions about JSON records, and of JSON objects for a given schema."""

import json
from typing import Any

from reprise.bench.lexicon import FIELDS
from reprise.demo_model.training.corpus.conversation import Conversation, Source

FIELD = [
    "Say which {field} {name} has.",
    "What is the {field} of {name}?",
    "What {field} does {name} have?",
    "Tell me the {field} of {name}.",
    "Which {field} belongs to {name}?",
    "Find the {field} of {name}.",
    "Give me the {field} for {name}.",
    "I need the {field} of {name}.",
    "Look up the {field} of {name}.",
    "What does the record of {name} say about {field}?",
    "Please tell me which {field} {name} has.",
    "Could you give me the {field} of {name}?",
    "Please find the {field} for {name}.",
]
RECORD = [
    "Please show the JSON record for {name}.",
    "Return the record of {name} as JSON.",
    "Give me the record of {name} as JSON.",
    "Show the full record for {name}.",
    "Answer with the JSON record of {name}.",
    "Find {name} and return the record as JSON.",
    "I need the JSON of {name}.",
    "Which record belongs to {name}? Answer with JSON.",
    "Please return the JSON record of {name}.",
    "Give me the full JSON record for {name}.",
]
LIST = [
    "List all names.",
    "List every name in the records.",
    "Which names are in the records?",
    "Give me a list of all names.",
    "Name everyone in the records.",
    "Please list all names in the records.",
    "Give me the names of all records.",
]
SCHEMA = [
    "Make a JSON object for this schema: {schema}\nThe values: {facts}.",
    "Fill in this schema: {schema}\nUse these values: {facts}.",
    "Answer with JSON that fits the schema {schema}\n{facts}.",
    "Schema: {schema}\nValues: {facts}.\nReturn the JSON object.",
    "Here is a schema: {schema}\nTurn this into JSON: {facts}.",
    "Return a JSON object for the schema {schema}\nThe values are: {facts}.",
    "Here is a JSON schema: {schema}\nFill it in with: {facts}.",
]
FACT = ["{key} {value}", "{key}: {value}"]


def make_records(source: Source, count: int) -> list[dict[str, Any]]:
    """Generate records with the same fields. The name comes first and is different in each."""
    fields = source.rng.sample([f for f in FIELDS if f != "name"], source.between(1, 4))
    return [
        {"name": name, **{field: source.words.value() for field in fields}}
        for name in source.words.names(count)
    ]


def _document(source: Source, records: list[dict[str, Any]]) -> str:
    if source.chance(0.5):
        return "[" + ",\n ".join(json.dumps(record) for record in records) + "]"
    return "\n".join(json.dumps(record) for record in records)


def look_up(source: Source) -> Conversation:
    """Make a sample of questions about the same records. Answers quote the record, then state the value."""
    records = make_records(source, source.between(2, 8))
    talk = Conversation("record look-up")
    for turn in range(1 if source.held_out else source.rng.randint(2, 6)):
        record = source.rng.choice(records)
        kind = source.rng.random()
        if kind < 0.6:
            field = source.rng.choice([key for key in record if key != "name"])
            request = source.say(FIELD, field=field, name=record["name"])
            answer = f"{json.dumps(record)}\nThe {field} of {record['name']} is {record[field]}."
        elif kind < 0.9:
            request, answer = source.say(RECORD, name=record["name"]), json.dumps(record)
        else:
            request, answer = source.say(LIST), "\n".join(f"- {r['name']}" for r in records)
        talk.user(source.around(request, _document(source, records)) if turn == 0 else request)
        talk.assistant(answer)
    return talk


def fill_schema(source: Source) -> Conversation:
    """Make a sample with a JSON schema and its values in words. The answer is the JSON object."""
    keys = source.rng.sample(FIELDS, source.between(2, 5))
    record = {key: source.words.value() for key in keys}
    properties = {k: {"type": "integer" if isinstance(v, int) else "string"} for k, v in record.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if source.chance(0.5):
        schema["required"] = keys
    stated = list(record.items())
    if source.chance(0.15):
        source.rng.shuffle(stated)
    facts = ", ".join(source.rng.choice(FACT).format(key=k, value=v) for k, v in stated)
    talk = Conversation("JSON for a schema")
    return talk.user(source.say(SCHEMA, schema=json.dumps(schema), facts=facts)).assistant(json.dumps(record))
