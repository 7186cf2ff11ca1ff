"""Read the tools of a request, in any API's shape."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import PydanticCustomError, from_json, to_json

from reprise.server.conversation.model import Json, Tool
from reprise.server.conversation.parts import note_unknown
from reprise.server.errors import bad_field, shortened
from reprise.server.tool_formats.free_text import input_schema
from reprise.server.tool_formats.json_lark import escape_lark
from reprise.server.validation.constraints.json_schema import MAX_SCHEMA_BYTES, check_schema
from reprise.server.validation.constraints.json_schema_nodes import with_null_types
from reprise.server.validation.constraints.lark import check_lark
from reprise.server.validation.constraints.regex import check_regex
from reprise.server.validation.constraints.relaxed_schema import relaxations
from reprise.server.validation.field_errors import MAX_PARSED, field_error
from reprise.server.validation.notes import Notes

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
    """Reads a request's tools, and leaves out those that only a vendor's server or a special client can run.

    tools: the tools that the model is shown. left_out: names and types of the tools that were left out.
    """

    notes: Notes
    tools: list[Tool] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)
    _names: set[str] = field(default_factory=set)

    def read(self, given: Any, path: str, namespace: str | None = None) -> None:
        """Read an array of tools and add them. path: the array's path in the request.

        Raises BadRequestError if a function or free-form tool is malformed: the model could not call it.
        """
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
        if (
            not isinstance(given, dict)
            or kind not in (None, "function", "custom")
            or not _inner(given)[0].get("name")
        ):
            self.left_out |= {str(kind), str(given.get("name")) if isinstance(given, dict) else ""}
            self.notes.left_out(f"{at}.{shortened(kind)}" if isinstance(kind, str) else at)
            return
        tool = read_tool(given, at, namespace, self.notes)
        if tool.name in self._names:
            self.notes.left_out(at)
        else:
            self._names.add(tool.name)
            self.tools.append(tool)


def _inner(given: Json) -> tuple[Json, str]:
    """Return the object that has a tool's name, and the path to it from the tool."""
    for key in (given.get("type"), "function"):
        if isinstance(key, str) and isinstance(given.get(key), dict):
            return given[key], f".{key}"
    return given, ""


def _is_own(given: Json, where: str, api: str) -> bool:
    """Return whether a tool has the form of the API, and not that of another. where: as of _inner()."""
    kind = given.get("type")
    match api:
        case "chats":
            return kind in ("function", "custom") and where == f".{kind}"
        case "messages":
            return kind in (None, "custom") and not where and "input_schema" in given
        case "responses":
            return kind in ("function", "custom") and not where and "input_schema" not in given
    return True


def read_tool(given: Json, at: str, namespace: str | None, notes: Notes) -> Tool:
    """Return a tool in the normal form. at: the tool's path in the request.

    Raises BadRequestError if the tool's name or schema is malformed, so that the model could not call it.
    """
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
    shown = function_name(namespace, name)
    is_custom = given.get("type") == "custom" and "input_schema" not in inner
    if is_custom:
        return _custom_tool(inner, at, shown, description, name, namespace)
    strict = inner.get("strict")
    if not isinstance(strict, bool | None):
        raise bad_field(f"{at}.strict", "must be a boolean", "invalid_type")
    key = "input_schema" if "input_schema" in inner else "parameters"
    schema = _schema(inner.get(key), f"{at}.{key}", notes)
    described = _with_examples(description, inner.get("input_examples"))
    return Tool(shown, described, schema, strict is True, None, f"{at}.{key}", False, name, namespace)


def _schema(given: Any, at: str, notes: Notes) -> Json:
    if isinstance(given, str):
        notes.understood(at, "must be an object")
        if len(given) > MAX_PARSED:
            raise bad_field(
                at, f"has {len(given)} characters of JSON; at most {MAX_PARSED} are allowed", "invalid_value"
            )
        try:
            given = from_json(given, allow_inf_nan=False)
        except ValueError:
            given = {}
    if given is None:
        return _NO_PARAMETERS
    if not isinstance(given, dict):
        raise bad_field(at, "must be an object", "invalid_type")
    if given.get("type", "object") != "object":
        raise bad_field(f"{at}.type", "must be 'object'", "invalid_value")
    return given if "type" in given else {"type": "object", **given}


def _with_examples(description: str | None, examples: Any) -> str | None:
    """Return a description with the examples of the input that Anthropic's tools may have."""
    if not isinstance(examples, list) or not examples:
        return description
    shown = "\n".join(to_json(example).decode() for example in examples)
    return "\n\n".join(filter(None, (description, f"Examples of input:\n{shown}")))


def _custom_tool(
    inner: Json, at: str, shown: str, description: str | None, name: str, namespace: str | None
) -> Tool:
    """Return the function that the model is shown in place of a free-form tool."""
    grammar = _grammar(inner.get("format"), f"{at}.format")
    if grammar is None:
        return Tool(shown, description or None, input_schema(), False, None, at, True, name, namespace)
    syntax, definition = grammar
    told = f"The input follows this {syntax} grammar:\n{definition}"
    described = "\n\n".join(filter(None, (description, told)))
    pattern = f"^(?:{definition})$" if syntax == "regex" else None
    lark = definition if syntax == "lark" else None
    schema = input_schema(pattern)
    return Tool(shown, described, schema, pattern is not None, lark, f"{at}.format", True, name, namespace)


def _grammar(given: Any, at: str) -> tuple[str, str] | None:
    """Return the syntax and the definition of a free-form tool's grammar; None if it takes any text."""
    if given is None or (isinstance(given, dict) and given.get("type") == "text"):
        return None
    if not isinstance(given, dict) or given.get("type") != "grammar":
        raise bad_field(
            f"{at}.type" if isinstance(given, dict) else at, "must be 'text' or 'grammar'", "invalid_value"
        )
    if isinstance(given.get("grammar"), dict):
        given, at = given["grammar"], f"{at}.grammar"
    syntax, definition = given.get("syntax"), given.get("definition")
    if syntax not in ("lark", "regex"):
        raise bad_field(f"{at}.syntax", "must be 'lark' or 'regex'", "invalid_value")
    if not isinstance(definition, str) or not definition:
        raise bad_field(
            f"{at}.definition", "must be a grammar, as a string that is not empty", "invalid_type"
        )
    try:
        check = check_regex if syntax == "regex" else check_lark
        check(definition)
        if syntax == "lark":
            escape_lark(definition)
    except PydanticCustomError as fault:
        phrase = str((fault.context or {})["phrase"])
        raise bad_field(f"{at}.definition", phrase, fault.type) from None
    except ValueError as fault:
        raise bad_field(f"{at}.definition", str(fault), "unsupported_value") from None
    return syntax, definition


def function_name(namespace: str | None, name: str) -> str:
    """Return the name by which the model is shown a tool: the client's, after its namespace if it has one."""
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
    """Return the words that name the tool which a path such as tools[0].function.parameters belongs to."""
    return f"of the tool '{shortened(tool.own_name or tool.name)}'"


def check_enforced(tools: Iterable[Tool]) -> None:
    """Refuse tools whose schemas must be enforced but cannot be. Raises BadRequestError.

    tools: only those whose schemas are enforced. Of a schema that is not strict, only the part that can be
    enforced is checked.
    """
    num_bytes = 0
    for tool in tools:
        try:
            given = tool.parameters
            schema = with_null_types(given) if tool.strict else next(relaxations(given)).schema
            num_bytes += len(check_schema(schema))
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


def check_enforced_in_full(tools: Sequence[Tool]) -> None:
    """Refuse tools whose schemas cannot be enforced in full. Raises PydanticCustomError."""
    for tool in tools:
        check_schema(with_null_types(tool.parameters))
