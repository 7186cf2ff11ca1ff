"""A tool-calling agent: calls use values from earlier results, and results are repeated in a plan."""

import json
import random
from collections.abc import Sequence
from typing import Any

from bench.workloads.chats import Grow, Message, Turn, Workload, user
from bench.workloads.words import FIELDS, NOUNS, VERBS, value

NUM_TOOLS = 3


def _tool(rng: random.Random, verb: str, noun: str, fields: Sequence[str]) -> dict[str, Any]:
    """Make a function tool in OpenAI's format."""
    properties = {field: {"type": "string"} for field in fields}
    function = {
        "name": f"{verb}_{noun}",
        "description": rng.choice((f"Use this to {verb} a {noun}.", f"{verb.capitalize()} the {noun}.")),
        "parameters": {"type": "object", "properties": properties, "required": list(fields)},
    }
    return {"type": "function", "function": function}


def _agent(rng: random.Random, _: Grow) -> Sequence[Turn]:
    pairs = list(zip(rng.sample(VERBS, NUM_TOOLS), rng.sample(NOUNS, NUM_TOOLS), strict=True))
    taken = [rng.sample(FIELDS, 2) for _ in pairs]
    tools = tuple(_tool(rng, *pair, fields) for pair, fields in zip(pairs, taken, strict=True))
    messages: list[Message] = []
    turns: list[Turn] = []
    plans: list[str] = []
    known: dict[str, str] = {}

    def ask(reference: str) -> None:
        turns.append(Turn(tuple(messages), reference, tools=tools))

    for at, (verb, noun) in enumerate(pairs):
        name, number = f"{verb}_{noun}", f"call_{at + 1}"
        # Arguments come from the previous tool's result if it has the field.
        arguments = {field: known.get(field) or _word(rng) for field in taken[at]}
        call = {"name": name, "arguments": json.dumps(arguments)}
        facts = " and ".join(f"{field} {text}" for field, text in arguments.items())
        messages.append(user(f"Use {name} with {facts}."))
        # The most common format of a call; some models use others.
        ask(f'<tool_call>\n{{"name": "{name}", "arguments": {call["arguments"]}}}\n</tool_call>')
        known = {field: _word(rng) for field in taken[(at + 1) % NUM_TOOLS]}
        result = known | {field: value(rng) for field in rng.sample(FIELDS, 4) if field not in known}
        made = {"id": number, "type": "function", "function": call}
        messages.append({"role": "assistant", "content": "", "tool_calls": [made]})
        messages.append({"role": "tool", "content": json.dumps(result), "tool_call_id": number})
        plan = f"{name} returned: {', '.join(f'{key} is {content}' for key, content in result.items())}."
        ask(plan)
        messages.append({"role": "assistant", "content": plan})
        plans.append(plan)
    messages.append(user("Now list all results as the steps of a plan."))
    ask("\n".join(f"{at}. {plan}" for at, plan in enumerate(plans, 1)))
    return turns


def _word(rng: random.Random) -> str:
    """Return a random value that is text."""
    while not isinstance(word := value(rng), str):
        pass
    return word


WORKLOADS = (
    Workload(
        "agent",
        "three chained tool calls with arguments from earlier results, which are then listed as a plan",
        _agent,
    ),
)
