"""Samples of tool calls with arguments from the request, and of answers from a tool's result."""

from typing import Any

from reprise.bench.lexicon import FIELDS
from reprise.demo_model.training.corpus.conversation import Conversation, Source

REQUEST = [
    "{verb} the {noun} with {facts}.",
    "Please {verb} the {noun} with {facts}.",
    "{verb} a {noun}: {facts}.",
    "I want to {verb} the {noun} with {facts}.",
    "Can you {verb} the {noun}? {facts}.",
    "Use {tool} with {facts}.",
    "Call {tool}: {facts}.",
    "Could you {verb} a {noun} with {facts}?",
    "Please call {tool} with {facts}.",
    "I need to {verb} a {noun} with {facts}.",
    "Can you please {verb} the {noun} with {facts}?",
    "Please use {tool}: {facts}.",
]
FACT = ["{key} {value}", "{key}: {value}"]
DESCRIPTION = ["{verb} the {noun}.", "{verb} a {noun}.", "Use this to {verb} a {noun}.", "{verb} any {noun}."]


def make_tool(source: Source, verb: str, noun: str) -> dict[str, Any]:
    """Generate a function tool in OpenAI's format with one to three parameters."""
    fields = source.rng.sample(FIELDS, source.between(1, 3))
    properties = {field: {"type": source.rng.choice(("string", "integer"))} for field in fields}
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if source.chance(0.6):
        parameters["required"] = fields
    description = source.rng.choice(DESCRIPTION).format(verb=verb, noun=noun).capitalize()
    return {
        "type": "function",
        "function": {"name": f"{verb}_{noun}", "description": description, "parameters": parameters},
    }


def call_tool(source: Source) -> Conversation:
    """Make a sample with several tools and a request for one. The answer is the tool call.

    In training several calls follow each other, each answered from its result before the next.
    """
    words, rng = source.words, source.rng
    talk = Conversation("tool call")
    pairs: dict[tuple[str, str], None] = {}
    while len(pairs) < source.between(1, 3):
        pairs[(words.verb(), words.noun())] = None
    talk.tools = [make_tool(source, verb, noun) for verb, noun in pairs]
    num_calls = 1 if source.held_out else rng.randint(2, 5)
    for turn in range(num_calls):
        at = rng.randrange(len(talk.tools))
        (verb, noun), function = list(pairs)[at], talk.tools[at]["function"]
        arguments = {
            key: words.number() if kind["type"] == "integer" else _string(source)
            for key, kind in function["parameters"]["properties"].items()
        }
        facts = [rng.choice(FACT).format(key=key, value=value) for key, value in arguments.items()]
        stated = ", ".join(facts[:-1]) + (" and " if facts[:-1] else "") + facts[-1]
        request = source.say(REQUEST, verb=verb, noun=noun, tool=function["name"], facts=stated)
        talk.user(request[0].upper() + request[1:]).call(function["name"], arguments)
        if turn < num_calls - 1:
            _answer_from_result(source, talk, function["name"])
    return talk


def answer_result(source: Source) -> Conversation:
    """Make a sample whose last answer states the result of a tool call."""
    talk = call_tool(source)
    talk.family = "answer from a tool result"
    _answer_from_result(source, talk, talk.messages[-1]["tool_calls"][0]["function"]["name"])
    return talk


def _string(source: Source) -> str:
    while isinstance(value := source.words.value(), int):
        pass
    return value


def _answer_from_result(source: Source, talk: Conversation, name: str) -> None:
    result = {field: source.words.value() for field in source.rng.sample(FIELDS, source.between(1, 3))}
    talk.tool(result)
    stated = ", ".join(f"{key} is {value}" for key, value in result.items())
    talk.assistant(f"{name} returned: {stated}.")
