"""Change a conversation as little as possible, so that its chat template drops no part of it.

A change depends only on the template, the messages before it, and those after it up to the next answer. So
the next turn makes the same change, and the prompt still begins like the cached prefix.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any

from reprise.engine.sandbox.child_process import ChildError, RenderLimitError

Json = dict[str, Any]
Render = Callable[[Sequence[Json], list[Json] | None], str]
"""Renders messages with tools, or None for no tools. Raises almost anything if the template refuses them."""

PLACE = "\ufdd5"
"""Stands around a number before a call's name: the words before this call, which the template does not show
there, take its place in the rendered text. Unicode keeps it from ever being a character."""
_PLACES = re.compile(f"{PLACE}([0-9]{{1,6}}){PLACE}")
NUM_ID_CHARACTERS = 9
"""Characters of a call's id in Mistral's templates, which take no other id."""
_IDS = ("call_1", "call_2"), ("probeid01", "probeid02")


@dataclass(frozen=True, slots=True)
class Traits:
    """What a chat template shows in full and in order: roles, calls and contents. All but one are booleans.

    has_system: a system message at the start, which stays there. later_systems: further system messages.
    user_runs, assistant_runs: two messages of the same role in a row.
    after_results: a user message right after tool results.
    tools: calls and results. The next five concern calls, and are true if the template takes no calls.
    calls_null: calls without content. calls_content: content and then calls. any_ids: call ids of any length.
    objects: arguments as JSON objects.
    parallel_calls: two calls in a message.
    system_alone: a system message without a user message. starts_any: an assistant message first.
    empty_answers: an assistant message without text. tools_null: None for no tools; False means [].
    definitions: tools' names and parameters.
    reasoning: reasoning beside the content, if any; False means as a part of the content.
    call_opening: text between the beginning of an answer without content and the name of its first call; ""
        if this is not certain.
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
    reasoning: bool = True
    call_opening: str = ""

    @property
    def strictest(self) -> "Traits":
        """The traits of a template that takes only user and assistant in turn, and perhaps tools."""
        none = {field.name: False for field in fields(self)}
        kept = ("tools", "calls_content", "any_ids", "objects", "tools_null", "definitions", "reasoning")
        return Traits(**{**none, **{name: getattr(self, name) for name in kept}, "call_opening": ""})


def system(text: str) -> Json:
    """Make a system message."""
    return {"role": "system", "content": text}


def user(text: str) -> Json:
    """Make a user message."""
    return {"role": "user", "content": text}


def assistant(text: str | None, calls: Sequence[Json] = ()) -> Json:
    """Make an assistant message. text: None only with calls."""
    return {"role": "assistant", "content": text} | ({"tool_calls": list(calls)} if calls else {})


def find_traits(render: Render) -> Traits | None:
    """Probe a template; None if it does not even show the user's text.

    Raises RenderLimitError and ChildError.
    """

    def shown(messages: Sequence[Json], tools: list[Json] | None) -> str:
        try:
            return render(messages, tools)
        except (RenderLimitError, ChildError):
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
        calls = [probe_call(one, is_object=objects) for one in ids[:count]]
        results = [
            {"role": "tool", "tool_call_id": one, "content": f"probe-result-{one}"} for one in ids[:count]
        ]
        words = [f"probe_{part}" for part in ("function", "key", *(f"value_{one}" for one in ids[:count]))]
        return shows([asked, assistant(content, calls), *results, *end], *words, tools=[_TOOL])

    def with_call(form: tuple[Sequence[str], bool, str | None], content: str | None, name: str = "") -> str:
        call = probe_call(form[0][0], is_object=form[1])
        call["function"]["name"] = name + call["function"]["name"]
        return shown([asked, assistant(content, [call])], [_TOOL])

    def call_opening(form: tuple[Sequence[str], bool, str | None]) -> str:
        plain, spoken = with_call(form, form[2]), shown([asked, said], [_TOOL])
        place = f"{PLACE}0{PLACE}"
        before, *after = with_call(form, form[2], place).split(place)
        begun = next((end for end, (a, b) in enumerate(zip(before, spoken, strict=False)) if a != b), 0)
        # Else it begins within a special token, or has this call's id.
        is_clean = spoken[begun:].lstrip().startswith("probe-a") and form[0][0] not in before[begun:]
        is_certain = is_clean and "probe-q" in before[:begun] and before + "".join(after) == plain
        return before[begun:] if is_certain else ""

    forms = product(_IDS, (True, False), (None, ""))
    form = next((one for one in forms if shows_calls(*one)), None)
    words_last = (
        form is not None and "probe_value" in with_call(form, "probe-spoken").partition("probe-spoken")[0]
    )
    thought = {"type": "thinking", "thinking": "probe-thought"}
    parts = shown([asked, {**said, "content": [thought, {"type": "text", "text": "probe-a"}]}], no_tools)
    # Not all that is shown of parts is made for them: some templates write them as JSON.
    joint = parts.partition("probe-thought")[2].partition("probe-a")
    shows_parts = bool(joint[1]) and not re.search(r"[{}'\"]", joint[0])
    return Traits(
        has_system=shows([head, asked]) and shows([head, asked, said, again]),
        later_systems=shows([head, asked, said, later, again]),
        user_runs=shows([asked, again]),
        assistant_runs=shows([asked, said, more, again]),
        after_results=form is None or shows_calls(*form, end=[again]),
        tools=form is not None,
        calls_null=form is None or form[2] is None,
        calls_content=form is None or (shows_calls(*form[:2], "probe-spoken") and not words_last),
        any_ids=form is None or form[0] is _IDS[0],
        objects=form is None or form[1],
        parallel_calls=form is None or shows_calls(*form, count=2),
        system_alone=shows([head, said]),
        starts_any=shows([said, asked]),
        empty_answers=shows([asked, assistant(""), again]),
        tools_null=no_tools is None,
        definitions=form is None or shows([asked], "probe_function", "probe_key", tools=[_TOOL]),
        reasoning=not shows_parts
        or "probe-thought" in shown([asked, {**said, "reasoning_content": "probe-thought"}], no_tools),
        call_opening="" if form is None else call_opening(form),
    )


def probe_call(call_id: str, *, is_object: bool = True) -> Json:
    """Make a call for probing a template. is_object: whether its arguments are an object rather than text."""
    value = f"probe_value_{call_id}"
    arguments = {"probe_key": value} if is_object else f'{{"probe_key": "{value}"}}'
    return {"id": call_id, "type": "function", "function": {"name": "probe_function", "arguments": arguments}}


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


CALL_START, CALL_END = "<tool_call>", "</tool_call>"
"""Around calls of the generic format, whose name in Markers is json_tools."""
CALL_GAP = "\n"
"""Between content and a call of the generic format."""
PYTHONIC_START, PYTHONIC_END = "<|tool_call_start|>", "<|tool_call_end|>"
"""Around calls of LFM2."""
_GAP = "\n\n"
_BEGUN = "(The conversation began earlier.)"
_READ = "(Read.)"
_GO_ON = "(Go on.)"
_NO_ANSWER = "(No answer.)"
_DEFINITIONS = "You can call these tools. Each line has one, with the JSON schema of its arguments:"
_PLAIN_TYPES = ("string", "number", "integer", "boolean", "array", "object")
_TOOLS = """You can call tools. To call one, write this, with the tool's name and its arguments as JSON:
<tool_call>
{"name": "...", "arguments": {...}}
</tool_call>
Then wait: its result follows. These are the tools, with the JSON schemas of their arguments:"""


@dataclass(slots=True)
class Fitted:
    """A conversation being changed.

    tools: those for the template. done: the changes, in words. words: those before calls, in their order,
    which place_words() puts into the rendered text.
    """

    messages: list[Json]
    tools: list[Json] | None
    done: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def change(self, messages: list[Json], what: str) -> None:
        """Replace the messages if they differ, and append `what`, the change in words, to done."""
        if messages != self.messages:
            self.messages = messages
            self.done.append(what)


def fit(
    messages: Sequence[Json],
    tools: list[Json] | None,
    traits: Traits,
    is_generic: bool,
    is_pythonic: bool = False,
) -> Fitted:
    """Return a conversation that the template accepts.

    messages: in OpenAI's form, arguments of calls as objects. They are not changed.
    is_generic: whether tools and calls use the generic format, which the template does not know.
    is_pythonic: whether the model writes calls as LFM2 does, which matters if the template shows none.
    """
    made = Fitted(list(messages), tools)
    _fit_tools(made, traits, is_generic, is_pythonic)
    if not (traits.has_system and traits.later_systems):
        where = "no later system text" if traits.has_system else "no system text"
        folded = fold_systems(made.messages, traits.has_system)
        made.change(folded, f"it takes {where}: that is put into the user's next message")
    if not traits.system_alone and not any(one["role"] == "user" for one in made.messages):
        changed = [user(one["content"]) if one["role"] == "system" else one for one in made.messages]
        made.change(changed, "it wants words of the user: system text alone is shown as the user's")
    if not traits.starts_any:
        made.change(
            with_a_beginning(made.messages),
            "it wants the user to speak first: system text or a few words are shown as the user's",
        )
    joins_calls = is_generic or traits.calls_content or bool(traits.call_opening)
    if not joins_calls:
        made.change(
            with_words_apart(made.messages, traits.assistant_runs),
            "it leaves out words beside calls: these are a message of their own",
        )
    if not is_generic and not traits.parallel_calls:
        made.change(split_calls(made.messages), "it takes one call at a time: several are shown in turn")
    runs = {"user": traits.user_runs, "assistant": traits.assistant_runs}
    merged_roles = {role for role, is_taken in runs.items() if not is_taken}
    merged = merge(made.messages, merged_roles, joins_calls)
    made.change(merged, "it wants user and assistant to take turns: their messages in a row are one")
    if joins_calls and not is_generic and not traits.calls_content:
        made.change(
            with_places(made.messages, made.words),
            "it leaves out words beside calls: these are written before the call",
        )
    if not is_generic and not traits.after_results:
        # What was merged counts here: text before a call has become a part of it.
        made.change(
            with_bridges(made.messages),
            "it wants turns around calls and results: a word of the other is added",
        )
    made.messages = [_with_content(one, traits.calls_null) for one in made.messages]
    if not traits.reasoning:
        made.messages = [_with_a_thinking_part(one) for one in made.messages]
    if not traits.empty_answers:
        made.change(
            [_with_an_answer(one) for one in made.messages],
            "it takes no answer without text: a word stands for it",
        )
    if not traits.any_ids:
        made.change(with_short_ids(made.messages), "it takes ids of nine characters: calls get such ids")
    if not traits.objects:
        made.messages = [with_text_arguments(one) for one in made.messages]
    return made


def _fit_tools(made: Fitted, traits: Traits, is_generic: bool, is_pythonic: bool) -> None:
    """Write tools into the system text, and calls into the text, if the template does not show them."""
    if is_generic:
        shown = [_as_text(message) for message in made.messages]
        if made.tools:
            shown = with_system_text(shown, _listed(_TOOLS, made.tools))
        made.change(shown, "it has no known format of tools: these, calls and results are text")
        made.tools = None
    elif made.tools and not traits.definitions:
        made.change(
            with_system_text(made.messages, _listed(_DEFINITIONS, made.tools)),
            "it does not show which tools there are: they are in the system text",
        )
    if is_pythonic and not traits.tools:
        shown = [_with_pythonic_calls(one) for one in made.messages]
        made.change(shown, "it does not show calls: they are a part of the text")
    if not traits.tools_null:
        made.tools = made.tools or []


def with_system_text(messages: Sequence[Json], text: str) -> list[Json]:
    """Append text to the first system message, or insert one."""
    if messages and messages[0]["role"] == "system":
        return [system(_GAP.join(filter(None, (messages[0]["content"], text)))), *messages[1:]]
    return [system(text), *messages]


def _listed(head: str, tools: Sequence[Json]) -> str:
    """Return a text that describes tools, one per line after a heading."""
    return "\n".join([head, *(_json(tool["function"]) for tool in tools)])


def _as_text(message: Json) -> Json:
    if message["role"] == "tool":
        return user(f"<tool_response>\n{message['content'] or ''}\n</tool_response>")
    calls = message.get("tool_calls")
    if not calls:
        return message
    # As server/tools/formats.py writes and reads json_tools, so that an answer is found in the prefix cache.
    written = [f"{CALL_START}\n{_call_json(call['function'])}\n{CALL_END}" for call in calls]
    spoken = [message["content"]] if message.get("content") else []
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": CALL_GAP.join([*spoken, "".join(written)])}


def _with_pythonic_calls(message: Json) -> Json:
    """Write a message's calls into its text, as LFM2 does: [name(key="value")]."""
    if not message.get("tool_calls"):
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    given = [
        ", ".join(f"{key}={_python(one)}" for key, one in function["arguments"].items())
        for function in functions
    ]
    calls = ", ".join(f"{one['name']}({text})" for one, text in zip(functions, given, strict=True))
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": f"{message.get('content') or ''}{PYTHONIC_START}[{calls}]{PYTHONIC_END}"}


def _python(value: Any) -> str:
    """Write a JSON value in Python."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_json(key)}: {_python(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_python, value)) + "]"
    return _json(value) if isinstance(value, str) else repr(value)


def _call_json(function: Json) -> str:
    return f'{{"name": {_json(function["name"])}, "arguments": {_argument_text(function)}}}'


def _argument_text(function: Json) -> str:
    given = function["arguments"]
    return given if isinstance(given, str) else _json(given)


def fold_systems(messages: Sequence[Json], keeps_first: bool) -> list[Json]:
    """Move system text into the user's next message, or into a new one if the assistant speaks next.

    keeps_first: whether a system message at the head stays as it is.
    """
    made: list[Json] = []
    held: list[str] = []
    for index, message in enumerate(messages):
        if message["role"] == "system" and not (index == 0 and keeps_first):
            held.append(message["content"] or "")
            continue
        if held and message["role"] == "user":
            message = {**message, "content": _GAP.join([*held, message["content"] or ""])}
            held = []
        elif held and message["role"] == "assistant":
            made.append(user(_GAP.join(held)))
            held = []
        made.append(message)
    return made + ([user(_GAP.join(held))] if held else [])


def with_a_beginning(messages: Sequence[Json]) -> list[Json]:
    """If the assistant speaks first, insert a user message with the system text or a few words."""
    start = next((index for index, one in enumerate(messages) if one["role"] != "system"), None)
    if start is None or messages[start]["role"] == "user":
        return list(messages)
    first = [user(messages[start - 1]["content"]) if start else user(_BEGUN)]
    return [*messages[: max(0, start - 1)], *first, *messages[start:]]


def with_words_apart(messages: Sequence[Json], assistant_runs: bool) -> list[Json]:
    """Move the text of a message with calls into a separate message before it.

    assistant_runs: whether the template accepts both in a row; if not, a user message is inserted between.
    """
    made: list[Json] = []
    for message in messages:
        if message.get("tool_calls") and (message.get("content") or "").strip():
            # Muse Spark's template takes this as what it is; to all others it says nothing.
            words = {key: value for key, value in message.items() if key != "tool_calls"}
            made.append(words | {"end_turn": False})
            message = assistant(None, message["tool_calls"])
        has_spoken = made and made[-1]["role"] == "assistant" and not made[-1].get("tool_calls")
        if message.get("tool_calls") and has_spoken and not assistant_runs:
            made.append(user(_GO_ON))
        made.append(message)
    return made


def with_places(messages: Sequence[Json], words: list[str]) -> list[Json]:
    """Take the text of messages with calls out, append it to words, and mark its place in the call's name."""
    made: list[Json] = []
    for message in messages:
        if message.get("tool_calls") and (message.get("content") or "").strip():
            first, *others = message["tool_calls"]
            name = f"{PLACE}{len(words)}{PLACE}{first['function']['name']}"
            words.append(message["content"])
            first = {**first, "function": {**first["function"], "name": name}}
            message = {**message, "content": None, "tool_calls": [first, *others]}
        made.append(message)
    return made


def place_words(rendered: str, words: Sequence[str], opening: str) -> str:
    """Put each of the words before its call, where its place is named first; no other mention of it stays.

    opening: see Traits.call_opening. Raises ValueError if a place is missing, or the opening before it.
    """
    text, *rest = _PLACES.split(rendered)
    made, placed = [text], set[int]()
    for number, after in zip(map(int, rest[::2]), rest[1::2], strict=True):
        if number < len(words) and number not in placed and made[-1].endswith(opening):
            placed.add(number)
            made += [made.pop().removesuffix(opening), words[number], opening]
        made.append(after)
    if len(placed) < len(words):
        raise ValueError("there is no place for words before a call")
    return "".join(made)


def split_calls(messages: Sequence[Json]) -> list[Json]:
    """Split messages so that each has one call, followed by its result. Results without a call come last."""
    made: list[Json] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            made.append(message)
            continue
        end = next((i for i in range(index, len(messages)) if messages[i]["role"] != "tool"), len(messages))
        results: dict[str, list[Json]] = {call["id"]: [] for call in calls}
        others: list[Json] = []
        for one in messages[index:end]:
            results.get(one.get("tool_call_id", ""), others).append(one)
        index = end
        for number, call in enumerate(calls):
            head = message if number == 0 else assistant(None)
            made += [{**head, "tool_calls": [call]}, *results[call["id"]]]
        made += others
    return made


def with_bridges(messages: Sequence[Json]) -> list[Json]:
    """Insert messages so that user and assistant alternate across calls and results too."""
    made: list[Json] = []
    spoke = ""
    for message in messages:
        role = message["role"]
        if role in ("user", "assistant") and not message.get("tool_calls"):
            if role == spoke and (made[-1]["role"] == "tool" or made[-1].get("tool_calls")):
                made.append(assistant(_READ) if role == "user" else user(_GO_ON))
            spoke = role
        made.append(message)
    return made


def merge(messages: Sequence[Json], roles: Collection[str], joins_calls: bool) -> list[Json]:
    """Merge neighbouring messages of one role. A message with calls ends a run.

    joins_calls: whether a message with calls may be merged into the run before it.
    """
    groups: list[list[Json]] = []
    for message in messages:
        last = groups[-1][-1] if groups else None
        is_alone = message.get("tool_calls") and not joins_calls
        if last and last["role"] == message["role"] in roles and not (last.get("tool_calls") or is_alone):
            groups[-1].append(message)
        else:
            groups.append([message])
    return [group[0] if len(group) == 1 else _joined(group) for group in groups]


def _joined(group: Sequence[Json]) -> Json:
    """Return messages as one, with the texts of all."""
    texts = {
        name: _GAP.join(one[name] for one in group if one.get(name))
        for name in ("content", "reasoning_content")
    }
    keys = {key: value for one in group for key, value in one.items()}
    return keys | {name: text for name, text in texts.items() if text or name == "content"}


def _with_content(message: Json, takes_null: bool) -> Json:
    """Set missing content to "", which every template can join to other text."""
    is_left = message.get("content") is not None or (takes_null and message.get("tool_calls"))
    return message if is_left else {**message, "content": ""}


def _with_a_thinking_part(message: Json) -> Json:
    """Make a message's reasoning the first part of its content."""
    if not message.get("reasoning_content"):
        return message
    rest = {key: value for key, value in message.items() if key != "reasoning_content"}
    text = [{"type": "text", "text": message["content"]}] if message["content"] else []
    return rest | {"content": [{"type": "thinking", "thinking": message["reasoning_content"]}, *text]}


def _with_an_answer(message: Json) -> Json:
    """Give an answer without text, thoughts and calls some words."""
    content = message["content"]
    is_empty = message["role"] == "assistant" and not message.get("tool_calls") and isinstance(content, str)
    return {**message, "content": _NO_ANSWER} if is_empty and not content.strip() else message


def with_short_ids(messages: Sequence[Json]) -> list[Json]:
    """Replace the ids of calls by nine letters and digits, derived from the old id."""
    made = []
    for message in messages:
        changed = dict(message)
        if message.get("tool_calls"):
            changed["tool_calls"] = [{**call, "id": _short(call["id"])} for call in message["tool_calls"]]
        if message.get("tool_call_id") is not None:
            changed["tool_call_id"] = _short(message["tool_call_id"])
        made.append(changed)
    return made


def _short(call_id: str) -> str:
    is_short = len(call_id) == NUM_ID_CHARACTERS and call_id.isascii() and call_id.isalnum()
    digest = hashlib.sha256(call_id.encode(errors="replace")).hexdigest()
    return call_id if is_short else digest[:NUM_ID_CHARACTERS]


def with_text_arguments(message: Json) -> Json:
    """Write the arguments of a message's calls as JSON text."""
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": _argument_text(call["function"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def plain_tools(tools: Sequence[Json]) -> list[Json]:
    """Simplify tools for templates that convert schemas to a programming language's types.

    In the result every schema has a description and at most one type besides null, and objects are explicit.
    """
    made = []
    for tool in tools:
        function = {"description": "", **tool["function"]}
        function["parameters"] = _plain_schema({"type": "object", **function["parameters"]})
        made.append({**tool, "function": function})
    return made


def _plain_schema(schema: Any) -> Json:
    """Simplify a schema for plain_tools(), recursively."""
    if not isinstance(schema, dict):
        return {"description": ""}
    given = schema.get("type")
    kinds = [one for one in (given if isinstance(given, list) else [given]) if one in _PLAIN_TYPES]
    plain = {"description": "", **schema}
    plain.pop("type", None)
    if kinds:
        plain["type"] = kinds[0] if len(kinds) == 1 else kinds
    if kinds == ["object"]:
        properties = plain.get("properties")
        named = properties.items() if isinstance(properties, dict) else ()
        plain["properties"] = {name: _plain_schema(one) for name, one in named}
        plain.setdefault("additionalProperties", True)
    for name in ("items", "additionalProperties"):
        if isinstance(plain.get(name), dict):
            plain[name] = _plain_schema(plain[name])
    return plain


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
