"""Read a request's tools and tool_choice, in any API's shape."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic_core import PydanticCustomError, to_json

from reprise.server.errors import bad_field, shortened
from reprise.server.requests.fields import MAX_PARSED, Notes, field_error, parse_finite
from reprise.server.requests.json_schema import (
    MAX_SCHEMA_BYTES,
    check_regex,
    check_schema,
    relaxations,
    with_null_types,
)
from reprise.server.requests.lark import check_lark, escape_lark
from reprise.server.requests.messages import Json, note_unknown


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the model may ask the client to call. The model sees every tool as a function.

    strict: whether its schema must be enforced. lark: the grammar of a free-form tool's input, if it has one.
    at: path of the schema or grammar in the request. is_custom: whether the client's tool is free-form.
    own_name, namespace: the client's name for the tool, and its namespace, if any.
    """

    name: str
    description: str | None
    parameters: Json
    strict: bool = False
    lark: str | None = None
    at: str = ""
    is_custom: bool = False
    own_name: str = ""
    namespace: str | None = None

    def for_template(self) -> Json:
        """Return the tool as chat templates expect it."""
        function: Json = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": function | {"parameters": self.parameters}}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools the model may or must call.

    names: the tools that the model may call; None for all. is_named: it must call the one in names.
    is_parallel: whether an answer may have several calls; None if the choice does not say.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    names: tuple[str, ...] | None = None
    is_named: bool = False
    is_parallel: bool | None = None


def input_schema(pattern: str | None = None) -> dict[str, Any]:
    """Return the schema of a free-form tool's arguments. pattern: a regular expression for the input."""
    text = {"type": "string"} | ({} if pattern is None else {"pattern": pattern})
    needs = {"required": ["input"], "additionalProperties": False}
    return {"type": "object", "properties": {"input": text}, **needs}


MAX_TOOLS = 1024
MAX_NAME_CHARACTERS = 128
MAX_WHOLE_CHARACTERS = 10_000
"""Names of calls with longer ones are shortened before they are looked at."""
MAX_ENFORCED_BYTES = 2 * MAX_SCHEMA_BYTES
"""Limit for all enforced schemas of a request together: compiling this much takes a fifth of a second."""
_NO_PARAMETERS: Json = {"type": "object", "properties": {}, "additionalProperties": False}
_NAME = re.compile(r"[a-zA-Z0-9_.:/-]+")
_INVALID = re.compile(r"[^a-zA-Z0-9_-]")
_KNOWN = ("name", "description", "parameters", "input_schema", "input_examples", "strict", "format")


@dataclass(slots=True)
class ToolReader:
    """Reads a request's tools. left_out: names and types of tools that only a vendor's server can run."""

    notes: Notes
    tools: list[Tool] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)
    _names: set[str] = field(default_factory=set)

    def read(self, given: Any, path: str, namespace: str | None = None) -> None:
        """Read the array of tools at this path. Raises BadRequestError if the model could not call one."""
        if isinstance(given, dict):
            self.notes.understood(path, "must be an array")
            given = [given]
        if not isinstance(given, list):
            raise bad_field(path, "must be an array", "invalid_type")
        if (num := len(given) + len(self.tools)) > MAX_TOOLS:
            raise bad_field(path, f"has {num} entries; at most {MAX_TOOLS} are allowed", "invalid_value")
        for index, one in enumerate(given):
            self._add(one, f"{path}[{index}]", namespace)

    def _add(self, given: Any, at: str, namespace: str | None) -> None:
        kind = given.get("type") if isinstance(given, dict) else None
        if kind == "namespace":
            note_unknown(given, ("type", "name", "description", "tools"), at, self.notes)
            self.read(given.get("tools") or [], f"{at}.tools", str(given.get("name") or ""))
            return
        is_known = isinstance(given, dict) and kind in (None, "function", "custom")
        if not is_known or not _inner(given)[0].get("name"):
            self.left_out |= {str(kind), str(given.get("name")) if isinstance(given, dict) else ""}
            self.notes.left_out(f"{at}.{shortened(kind)}" if isinstance(kind, str) else at)
            return
        tool = read_tool(given, at, namespace, self.notes)
        if tool.name in self._names:
            self.notes.left_out(at)
        else:
            self._names.add(tool.name)
            self.tools.append(tool)

    def read_choice(self, given: Any) -> ToolChoice:
        """Normalize tool_choice; "auto" if it names a tool that was left out.

        Raises BadRequestError if it names an unknown tool, or requires a call without tools.
        """
        if isinstance(given, ToolChoice):
            return given
        choice = self._choice(given)
        if given is not None and not _is_own_choice(given, self.notes.api):
            self.notes.understood("tool_choice")
        known = {tool.name for tool in self.tools}
        missing = [name for name in choice.names or () if name not in known]
        needs_tools = choice.mode == "required" or choice.names is not None
        if self.left_out and needs_tools and (not known or (missing and self.left_out.issuperset(missing))):
            self.notes.left_out("tool_choice")
            return ToolChoice(is_parallel=choice.is_parallel)
        if needs_tools and not known:
            raise bad_field("tool_choice", "is allowed only with tools; send some", "invalid_value")
        if missing:
            phrase = f"names the tool '{shortened(missing[0])}', which is not among the tools"
            raise bad_field("tool_choice", phrase, "invalid_value")
        return choice

    def _choice(self, given: Any) -> ToolChoice:
        kind = given.get("type") if isinstance(given, dict) else given
        if given is None:
            return ToolChoice()
        if isinstance(kind, str) and kind in _MODES:
            return _with_parallel(_MODES[kind], given)
        if not isinstance(given, dict):
            phrase = "must be 'none', 'auto', 'required' or an object that names a tool"
            code = "invalid_value" if isinstance(given, str) else "invalid_type"
            raise bad_field("tool_choice", phrase, code)
        if kind is None:
            holders = map(given.get, _NAMED)
            is_named = isinstance(given.get("name"), str) or any(isinstance(one, dict) for one in holders)
            allowed = isinstance(given.get("allowed_tools"), dict)
            kind = "allowed_tools" if allowed else "function" if is_named else None
        if kind in _NAMED:
            return _with_parallel(ToolChoice("required", (_name(given, "tool_choice"),), True), given)
        if kind == "allowed_tools":
            return _allowed(given)
        if isinstance(kind, str) and kind in self.left_out:
            self.notes.left_out("tool_choice")
            return ToolChoice()
        phrase = "must be 'auto', 'none', 'required', 'function', 'custom' or 'allowed_tools'"
        raise bad_field("tool_choice.type", phrase, "invalid_value")


def _inner(given: Json) -> tuple[Json, str]:
    """Return the object with a tool's name, and its path within the tool."""
    for key in (given.get("type"), "function"):
        if isinstance(key, str) and isinstance(given.get(key), dict):
            return given[key], f".{key}"
    return given, ""


def _is_own(given: Json, where: str, api: str) -> bool:
    """Return whether a tool has this API's form. where: the path from _inner()."""
    kind, has_schema = given.get("type"), "input_schema" in given
    if api == "messages":
        return kind in (None, "custom") and not where and has_schema
    is_kind = kind in ("function", "custom")
    return {
        "chats": is_kind and where == f".{kind}",
        "responses": is_kind and not where and not has_schema,
    }.get(api, True)


def read_tool(given: Json, at: str, namespace: str | None, notes: Notes) -> Tool:
    """Normalize a tool. Raises BadRequestError if its name or schema is malformed."""
    inner, where = _inner(given)
    if not _is_own(given, where, notes.api):
        notes.understood(at, "has the form of another API")
    if where:
        note_unknown(given, ("type", where[1:]), at, notes)
    note_unknown(inner, (*_KNOWN, *(() if where else ("type",))), f"{at}{where}", notes)
    at = f"{at}{where}"
    name = inner["name"]
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MAX_NAME_CHARACTERS:
        what = f"1 to {MAX_NAME_CHARACTERS} letters, digits, underscores, dashes, dots, colons and slashes"
        raise bad_field(f"{at}.name", f"must have {what}", "invalid_value")
    description = inner.get("description")
    if not isinstance(description, str | None):
        notes.left_out(f"{at}.description")
        description = None
    tool = Tool(function_name(namespace, name), description, {}, own_name=name, namespace=namespace)
    if given.get("type") == "custom" and "input_schema" not in inner:
        return _custom_tool(tool, inner.get("format"), at)
    strict = inner.get("strict")
    if not isinstance(strict, bool | None):
        raise bad_field(f"{at}.strict", "must be a boolean", "invalid_type")
    key = "input_schema" if "input_schema" in inner else "parameters"
    at = f"{at}.{key}"
    schema = _schema(inner.get(key), at, notes)
    if isinstance(examples := inner.get("input_examples"), list) and examples:
        # Anthropic's tools may have them.
        shown = "\n".join(to_json(example).decode() for example in examples)
        description = "\n\n".join(filter(None, (description, f"Examples of input:\n{shown}")))
    return replace(tool, description=description, parameters=schema, strict=strict is True, at=at)


def _schema(given: Any, at: str, notes: Notes) -> Json:
    if isinstance(given, str):
        notes.understood(at, "must be an object")
        if len(given) > MAX_PARSED:
            phrase = f"has {len(given)} characters of JSON; at most {MAX_PARSED} are allowed"
            raise bad_field(at, phrase, "invalid_value")
        try:
            given = parse_finite(given)
        except ValueError:
            given = {}
    if given is None:
        return _NO_PARAMETERS
    if not isinstance(given, dict):
        raise bad_field(at, "must be an object", "invalid_type")
    if given.get("type", "object") != "object":
        raise bad_field(f"{at}.type", "must be 'object'", "invalid_value")
    return given if "type" in given else {"type": "object", **given}


def _custom_tool(tool: Tool, given: Any, at: str) -> Tool:
    """Return the function that stands for a free-form tool in the prompt. given: its format."""
    syntax, definition, where = _grammar(given, f"{at}.format")
    told = f"The input follows this {syntax} grammar:\n{definition}" if syntax else ""
    pattern = f"^(?:{definition})$" if syntax == "regex" else None
    return replace(
        tool,
        description="\n\n".join(filter(None, (tool.description, told))) or None,
        parameters=input_schema(pattern),
        strict=pattern is not None,
        lark=definition if syntax == "lark" else None,
        at=where or at,
        is_custom=True,
    )


def _grammar(given: Any, at: str) -> tuple[str, str, str]:
    """Return the syntax, the definition and its path of a free-form tool's grammar; empty for any text."""
    if given is None or (isinstance(given, dict) and given.get("type") == "text"):
        return "", "", ""
    if not isinstance(given, dict) or given.get("type") != "grammar":
        at = f"{at}.type" if isinstance(given, dict) else at
        raise bad_field(at, "must be 'text' or 'grammar'", "invalid_value")
    if isinstance(given.get("grammar"), dict):
        given, at = given["grammar"], f"{at}.grammar"
    syntax, definition = given.get("syntax"), given.get("definition")
    if syntax not in ("lark", "regex"):
        raise bad_field(f"{at}.syntax", "must be 'lark' or 'regex'", "invalid_value")
    at = f"{at}.definition"
    if not isinstance(definition, str) or not definition:
        phrase = "must be a grammar, as a string that is not empty"
        raise bad_field(at, phrase, "invalid_type")
    try:
        if syntax == "regex":
            check_regex(definition)
        else:
            check_lark(definition)
            escape_lark(definition)
    except PydanticCustomError as fault:
        phrase = str((fault.context or {})["phrase"])
        raise bad_field(at, phrase, fault.type) from None
    except ValueError as fault:
        raise bad_field(at, str(fault), "unsupported_value") from None
    return syntax, definition, at


def function_name(namespace: str | None, name: str) -> str:
    """Return a tool's name in the prompt: the client's, prefixed with its namespace, if any."""
    if namespace is None:
        return name
    full = f"{namespace}__{name}"
    if len(full) > MAX_WHOLE_CHARACTERS:
        full = f"{full[:MAX_NAME_CHARACTERS]}{hashlib.sha256(full.encode()).hexdigest()}"
    full = _INVALID.sub("_", full)
    if len(full) > MAX_NAME_CHARACTERS:
        digest = hashlib.sha256(full.encode()).hexdigest()[:8]
        full = f"{full[: MAX_NAME_CHARACTERS - 9]}_{digest}"
    return full


def of_tool(tool: Tool) -> str:
    """Return a phrase for the tool of a path such as tools[0].function.parameters."""
    return f"of the tool '{shortened(tool.own_name or tool.name)}'"


def check_enforced(tools: Iterable[Tool]) -> None:
    """Refuse tools whose schemas cannot be enforced; unless strict, a part suffices."""
    num_bytes = 0
    for tool in tools:
        try:
            if tool.strict:
                num_bytes += len(check_schema(with_null_types(tool.parameters)))
            else:
                num_bytes += next(relaxations(tool.parameters)).num_bytes
        except PydanticCustomError as fault:
            context = fault.context or {}
            phrase = f"{of_tool(tool)} {context['phrase']}"
            raise bad_field(f"{tool.at}{context.get('at', '')}", phrase, fault.type) from None
    if num_bytes > MAX_ENFORCED_BYTES:
        phrase = (
            f"have {num_bytes} bytes of schemas to enforce; at most {MAX_ENFORCED_BYTES} are allowed. "
            "Send fewer or smaller ones"
        )
        raise field_error("schema_too_large", phrase, "tools")


_MODES: dict[Any, ToolChoice] = {
    "none": ToolChoice("none"),
    "auto": ToolChoice(),
    **dict.fromkeys(("any", "required"), ToolChoice("required")),
}
_NAMED = ("function", "custom", "tool")


def _is_own_choice(given: Any, api: str) -> bool:
    if isinstance(given, str):
        return api != "messages" and given != "any"
    kind = given.get("type")
    if api == "messages":
        return kind in ("auto", "any", "none", "tool")
    return kind not in (*_MODES, "tool", None) and (api != "chats" or isinstance(given.get(kind), dict))


def _with_parallel(choice: ToolChoice, given: Any) -> ToolChoice:
    """Add Anthropic's setting for parallel calls to a choice."""
    is_single = isinstance(given, dict) and given.get("disable_parallel_tool_use") is True
    return replace(choice, is_parallel=False) if is_single else choice


def _allowed(given: Json) -> ToolChoice:
    path = "tool_choice"
    if isinstance(given.get("allowed_tools"), dict):
        given, path = given["allowed_tools"], f"{path}.allowed_tools"
    mode, tools = given.get("mode", "auto"), given.get("tools")
    if mode not in ("auto", "required"):
        raise bad_field(f"{path}.mode", "must be 'auto' or 'required'", "invalid_value")
    if not isinstance(tools, list) or not 0 < len(tools) <= MAX_TOOLS:
        raise bad_field(f"{path}.tools", f"must be an array of 1 to {MAX_TOOLS} tools", "invalid_value")
    names = [_name(tool, f"{path}.tools[{index}]") for index, tool in enumerate(tools)]
    return ToolChoice("required" if mode == "required" else "auto", tuple(dict.fromkeys(names)))


def _name(given: Any, path: str) -> str:
    """Return the prompt's name of the tool that a choice names."""
    holders = (given.get(key) for key in ("function", "custom")) if isinstance(given, dict) else ()
    inner = next((one for one in holders if isinstance(one, dict)), given)
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(name, str):
        raise bad_field(f"{path}.name", "must be the name of one of the tools", "invalid_type")
    namespace = inner.get("namespace")
    return function_name(namespace if isinstance(namespace, str) else None, name)
