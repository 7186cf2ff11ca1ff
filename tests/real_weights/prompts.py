"""Twenty-four prompts of all that servers are asked: chat, code, JSON, calls, quotes, edits, Polish."""

import json
from dataclasses import dataclass

from reprise.bench.workloads.chats import render, user
from reprise.engine.interface.request import Grammar
from reprise.engine.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """What is asked. begun: how an answer begins, for a base model to go on with. grammar: of the answer."""

    asked: str
    begun: str = ""
    grammar: Grammar | None = None

    def tokens(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Return the prompt's ids, after HEAD: of a chat if the model knows chats, else of a text."""
        if tokenizer.has_chat_template:
            return render(tokenizer, [{"role": "system", "content": HEAD}, user(self.asked)])
        return tuple(tokenizer.encode(f"{HEAD}\n\n{self.asked}\n\n{self.begun}"))


def _object(**properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _call(name: str, **properties: object) -> Grammar:
    call = _object(name={"const": name}, arguments=_object(**properties))
    return Grammar("lark", f'start: "<tool_call>\\n" call "\\n</tool_call>"\ncall: %json {json.dumps(call)}')


_CITY = Grammar("json_schema", json.dumps(_object(city={"type": "string"}, people={"type": "integer"})))
_LIST = Grammar(
    "json_schema", json.dumps({"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4})
)
_DEEP = Grammar(
    "json_schema", json.dumps(_object(who=_object(name={"type": "string"}), ok={"type": "boolean"}))
)
_TEXT = {"type": "string"}

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Today")
_WINDS = ("south", "west", "north")
_SKIES = ("fog before noon", "a clear night", "rain, and a high sea")
HEAD = "You keep the lighthouse. Answer briefly. This is your log:\n" + "\n".join(
    f"{day}: wind {_WINDS[at % 3]}, {14 + 3 * at} ships passed the northern reef, "
    f"and the lamp burned {5 + at} pints of oil; {_SKIES[at % 3]}."
    for at, day in enumerate(_DAYS)
)
"""What all prompts begin with. Prefixes that are shorter than 256 tokens are not kept on disk."""

LINE = "At a quarter past nine the schooner Amelia passed the northern reef under reefed sails."
POEM = "The lamp was lit, the oil was low, the keeper watched the schooners go."
AREA = "def area(side):\n    total = side * side\n    return total"
POLISH = "Zażółć gęślą jaźń, a potem idź do domu."

PROMPTS = {
    "chat: a capital": Prompt("What is the capital of France, and its river?", "The capital of"),
    "quote: a line": Prompt(f"Repeat word for word: {LINE}", LINE[:24]),
    "json: a city": Prompt("Describe Rome as JSON, with city and people.", "", _CITY),
    "code: a function": Prompt("Write a Python function that adds two numbers.", "def add(a, b):"),
    "polish: a quote": Prompt(f"Powtórz dokładnie: {POLISH}", POLISH[:7]),
    "tool: weather": Prompt("Call the tool weather for Oslo.", "", _call("weather", city=_TEXT)),
    "edit: a name": Prompt(f"Rename total to result:\n\n{AREA}", "def area(side):\n    result ="),
    "chat: a story": Prompt("Tell a story about a dog and a river.", "Once upon a time"),
    "chat: a list": Prompt("Name three colours.", "1."),
    "chat: a number": Prompt("What is seven times eight?", "Seven times eight is"),
    "quote: a poem": Prompt(f"Copy this text: {POEM}", POEM[:17]),
    "quote: twice": Prompt(f'Write "{LINE[:44]}" twice.', f'"{LINE[:20]}'),
    "quote: in capitals": Prompt("Repeat: SOS SOS SOS HELP HELP HELP", "SOS SOS"),
    "code: a loop": Prompt("Write a loop in C that prints 1 to 9.", "for (int i = 1;"),
    "code: a query": Prompt("Write SQL for all users named Ann.", "SELECT"),
    "code: a class": Prompt("Write a Python class Point with x and y.", "class Point:"),
    "json: colours": Prompt("List colours as JSON.", "", _LIST),
    "json: nested": Prompt("Is Ann here? Answer in JSON.", "", _DEEP),
    "tool: mail": Prompt("Send Ben a greeting.", "", _call("send", to=_TEXT, text=_TEXT)),
    "tool: a sum": Prompt("Add 12 and 30.", "", _call("add", a={"type": "integer"}, b={"type": "integer"})),
    "edit: a number": Prompt("Change 3 to 5:\n\nx = 3\ny = x * 3\n", "x = 5"),
    "edit: a word": Prompt(f"Replace lamp by fire: {POEM}", "The fire"),
    "polish: a question": Prompt("Jaka jest stolica Polski?", "Stolicą Polski jest"),
    "polish: emoji": Prompt("Napisz po polsku, z emoji 😀🎉: miłego dnia!", "Miłego dnia"),
}  # fmt: skip
