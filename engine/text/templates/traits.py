"""Find out which conversations a chat template takes and shows, by rendering short ones of unusual words.

A template may refuse a message that it does not expect, or leave it out silently; only its output tells.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

from reprise.engine.foreign.chat_templates import RenderLimitError

Json = dict[str, Any]
Render = Callable[[Sequence[Json], list[Json] | None], str]
"""Renders messages with tools, or None for no tools. Raises almost anything if the template refuses them."""

NUM_ID_CHARACTERS = 9
"""Characters of a call's id in Mistral's templates, which take no other id."""
_IDS = ("call_1", "call_2"), ("probeid01", "probeid02")


@dataclass(frozen=True, slots=True)
class Traits:
    """Which roles, calls and contents a chat template shows, in full and in the given order.

    has_system: a system message at the head, which stays there. later_systems: system messages after it.
    user_runs, assistant_runs: two messages of the same role in a row.
    after_results: the user may speak right after results.
    tools: calls and results. The next five are about calls, and true if the template takes none.
    calls_null: no content beside calls. calls_content: content beside calls. any_ids: ids of any length.
    objects: arguments as JSON objects.
    parallel_calls: two calls in a message.
    system_alone: a system message without any of the user. starts_any: the assistant may speak first.
    empty_answers: an assistant's message of no text. tools_null: None for no tools; otherwise it is [].
    definitions: the names and parameters of tools.
    """

    has_system: bool = True
    later_systems: bool = True
    user_runs: bool = True
    assistant_runs: bool = True
    after_results: bool = True
    tools: bool = True
    calls_null: bool = True
    calls_content: bool = True
    any_ids: bool = True
    objects: bool = True
    parallel_calls: bool = True
    system_alone: bool = True
    starts_any: bool = True
    empty_answers: bool = True
    tools_null: bool = True
    definitions: bool = True

    @property
    def strictest(self) -> "Traits":
        """The traits of a template that takes only user and assistant, alternating, and perhaps tools."""
        none = {field.name: False for field in fields(self)}
        kept = ("tools", "calls_content", "any_ids", "objects", "tools_null", "definitions")
        return Traits(**{**none, **{name: getattr(self, name) for name in kept}})


def system(text: str) -> Json:
    """Make a message of the system."""
    return {"role": "system", "content": text}


def user(text: str) -> Json:
    """Make a message of the user."""
    return {"role": "user", "content": text}


def assistant(text: str | None, calls: Sequence[Json] = ()) -> Json:
    """Make a message of the assistant. text: None beside calls only."""
    return {"role": "assistant", "content": text} | ({"tool_calls": list(calls)} if calls else {})


def find_traits(render: Render) -> Traits | None:
    """Probe a template; None if it does not even show what the user said. Raises RenderLimitError."""

    def shown(messages: Sequence[Json], tools: list[Json] | None) -> str:
        try:
            return render(messages, tools)
        except RenderLimitError:
            raise
        # A template is a program that comes with the model: it may raise anything.
        except Exception:
            return ""

    no_tools: list[Json] | None = None if "probe-q" in shown([user("probe-q")], None) else []

    def shows(messages: Sequence[Json], *more: str, tools: list[Json] | None = no_tools) -> bool:
        text = shown(messages, tools)
        said = [message["content"] for message in messages if message["content"]]
        places = [text.find(word) for word in said]
        is_whole = bool(text) and -1 not in places and places == sorted(places)
        return is_whole and all(word in text for word in more)

    if not shows([user("probe-q")]):
        return None
    head, later = system("probe-s"), system("probe-t")
    asked, again = user("probe-q"), user("probe-r")
    said, more = assistant("probe-a"), assistant("probe-b")

    def shows_calls(
        ids: Sequence[str], objects: bool, content: str | None, end: Sequence[Json] = (), count: int = 1
    ) -> bool:
        calls = [_call(one, objects) for one in ids[:count]]
        results = [
            {"role": "tool", "tool_call_id": one, "content": f"probe-result-{one}"} for one in ids[:count]
        ]
        words = [f"probe_{part}" for part in ("function", "key", *(f"value_{one}" for one in ids[:count]))]
        return shows([asked, assistant(content, calls), *results, *end], *words, tools=[_TOOL])

    forms = product(_IDS, (True, False), (None, ""))
    form = next((one for one in forms if shows_calls(*one)), None)
    return Traits(
        has_system=shows([head, asked]) and shows([head, asked, said, again]),
        later_systems=shows([head, asked, said, later, again]),
        user_runs=shows([asked, again]),
        assistant_runs=shows([asked, said, more, again]),
        after_results=form is None or shows_calls(*form, end=[again]),
        tools=form is not None,
        calls_null=form is None or form[2] is None,
        calls_content=form is None or shows_calls(*form[:2], "probe-spoken"),
        any_ids=form is None or form[0] is _IDS[0],
        objects=form is None or form[1],
        parallel_calls=form is None or shows_calls(*form, count=2),
        system_alone=shows([head, said]),
        starts_any=shows([said, asked]),
        empty_answers=shows([asked, assistant(""), again]),
        tools_null=no_tools is None,
        definitions=form is None or shows([asked], "probe_function", "probe_key", tools=[_TOOL]),
    )


def _call(call_id: str, is_object: bool) -> Json:
    value = f"probe_value_{call_id}"
    arguments = {"probe_key": value} if is_object else f'{{"probe_key": "{value}"}}'
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": "probe_function", "arguments": arguments},
    }


_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_function",
        "description": "Do something.",
        "parameters": {
            "type": "object",
            "properties": {"probe_key": {"type": "string", "description": "A key."}},
        },
    },
}
