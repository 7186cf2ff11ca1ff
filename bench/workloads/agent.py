"""A tool-calling agent: calls use values from earlier results, and results are repeated in a plan."""

import json
import random
from collections.abc import Sequence
from typing import Any

from bench.workloads.chats import Grow, Message, Turn, Workload, assistant, user
from bench.workloads.words import FIELDS, NOUNS, VERBS, value

NUM_TOOLS, NUM_CALLS = 3, 3


def _tool(rng: random.Random, name: str, fields: Sequence[str]) -> dict[str, Any]:
    """Make a function tool in OpenAI's format."""
    verb, _, noun = name.partition("_")
    properties = {field: {"type": "string"} for field in fields}
    function = {
        "name": name,
        "description": rng.choice((f"Use this to {verb} a {noun}.", f"{verb.capitalize()} the {noun}.")),
        "parameters": {"type": "object", "properties": properties, "required": list(fields)},
    }
    return {"type": "function", "function": function}


def _agent(rng: random.Random, _: Grow) -> Sequence[Turn]:
    called = [
        f"{verb}_{noun}"
        for verb, noun in zip(rng.sample(VERBS, NUM_TOOLS), rng.sample(NOUNS, NUM_TOOLS), strict=True)
    ]
    fields = {name: rng.sample(FIELDS, 2) for name in called}
    tools = tuple(_tool(rng, name, fields[name]) for name in called)
    messages: tuple[Message, ...] = ()
    turns: list[Turn] = []
    plans: list[str] = []
    known: dict[str, str] = {}
    for at in range(NUM_CALLS):
        name = called[at % NUM_TOOLS]
        # Arguments come from the previous tool's result if it has the field.
        arguments = {field: known.get(field) or _word(rng) for field in fields[name]}
        facts = " and ".join(f"{field} {text}" for field, text in arguments.items())
        call = {"name": name, "arguments": json.dumps(arguments)}
        messages = (*messages, user(f"Use {name} with {facts}."))
        turns.append(Turn(messages, _tool_call_text(call), tools=tools))
        number = f"call_{at + 1}"
        made = {"id": number, "type": "function", "function": call}
        following = fields[called[(at + 1) % NUM_TOOLS]]
        known = {field: _word(rng) for field in following}
        result = known | {field: value(rng) for field in rng.sample(FIELDS, 4) if field not in known}
        messages = (
            *messages,
            {"role": "assistant", "content": "", "tool_calls": [made]},
            {"role": "tool", "content": json.dumps(result), "tool_call_id": number},
        )
        plan = f"{name} returned: {', '.join(f'{key} is {content}' for key, content in result.items())}."
        turns.append(Turn(messages, plan, tools=tools))
        messages = (*messages, assistant(plan))
        plans.append(plan)
    messages = (*messages, user("Now list all results as the steps of a plan."))
    steps = "\n".join(f"{at}. {plan}" for at, plan in enumerate(plans, 1))
    turns.append(Turn(messages, steps, tools=tools))
    return turns


def _word(rng: random.Random) -> str:
    """Return a random value that is text."""
    while not isinstance(word := value(rng), str):
        pass
    return word


def _tool_call_text(call: dict[str, str]) -> str:
    """Write a tool call in the most common format; some models use others."""
    return f'<tool_call>\n{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}\n</tool_call>'


WORKLOADS = (
    Workload(
        "agent",
        "three chained tool calls with arguments from earlier results, which are then listed as a plan",
        _agent,
    ),
)
