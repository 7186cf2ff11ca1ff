"""Read tool_choice, in any API's shape."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from reprise.server.conversation.model import Json, Tool, ToolChoice
from reprise.server.conversation.tools import MAX_TOOLS, function_name
from reprise.server.errors import bad_field, shortened
from reprise.server.validation.notes import Notes

_MODES: dict[Any, ToolChoice] = {
    "none": ToolChoice("none"),
    "auto": ToolChoice(),
    "any": ToolChoice("required"),
    "required": ToolChoice("required"),
}
_NAMED = ("function", "custom", "tool")


def read_choice(
    given: Any, path: str, tools: Sequence[Tool], left_out: Collection[str], notes: Notes
) -> ToolChoice:
    """Return a request's tool_choice in the normal form; "auto" if it asks for a tool that was left out.

    path: the choice's path in the request. left_out: names and types of the tools that were left out.
    Raises BadRequestError if the choice names an unknown tool, or demands a call without there being tools.
    """
    if isinstance(given, ToolChoice):
        return given
    choice = _read(given, path, left_out, notes)
    if given is not None and not _is_own(given, notes.api):
        notes.understood(path)
    known = {tool.name for tool in tools}
    missing = [name for name in choice.names or () if name not in known]
    needs_tools = choice.mode == "required" or choice.names is not None
    if left_out and needs_tools and (not tools or (left_out.issuperset(missing) and missing)):  # type: ignore[attr-defined]
        notes.left_out(path)
        return ToolChoice(is_parallel=choice.is_parallel)
    if needs_tools and not tools:
        raise bad_field(path, "is allowed only with tools; send some", "invalid_value")
    if missing:
        phrase = f"names the tool '{shortened(missing[0])}', which is not among the tools"
        raise bad_field(path, phrase, "invalid_value")
    return choice


def _read(given: Any, path: str, left_out: Collection[str], notes: Notes) -> ToolChoice:
    kind = given.get("type") if isinstance(given, dict) else given
    if given is None:
        return ToolChoice()
    if isinstance(kind, str) and kind in _MODES:
        return _with_parallel(_MODES[kind], given)
    if not isinstance(given, dict):
        phrase = "must be 'none', 'auto', 'required' or an object that names a tool"
        raise bad_field(path, phrase, "invalid_value" if isinstance(given, str) else "invalid_type")
    if kind is None:
        kind = _kind_of(given)
    if kind in _NAMED:
        name = _name(given, path)
        return _with_parallel(ToolChoice("required", (name,), True), given)
    if kind == "allowed_tools":
        return _allowed(given, path)
    if isinstance(kind, str) and kind in left_out:
        notes.left_out(path)
        return ToolChoice()
    phrase = "must be 'auto', 'none', 'required', 'function', 'custom' or 'allowed_tools'"
    raise bad_field(f"{path}.type", phrase, "invalid_value")


def _kind_of(given: Json) -> str | None:
    """Return the type of a choice without one, by what it holds; None if it names no tool."""
    if isinstance(given.get("allowed_tools"), dict):
        return "allowed_tools"
    names_tool = isinstance(given.get("name"), str) or any(isinstance(given.get(k), dict) for k in _NAMED)
    return "function" if names_tool else None


def _is_own(given: Any, api: str) -> bool:
    """Return whether a choice has a form of the API, and not that of another."""
    if isinstance(given, str):
        return api != "messages" and given != "any"
    kind = given.get("type")
    if api == "messages":
        return kind in ("auto", "any", "none", "tool")
    return kind not in (*_MODES, "tool", None) and (api != "chats" or isinstance(given.get(kind), dict))


def _with_parallel(choice: ToolChoice, given: Any) -> ToolChoice:
    """Return a choice that also says what Anthropic's says about several calls."""
    is_single = isinstance(given, dict) and given.get("disable_parallel_tool_use") is True
    return replace(choice, is_parallel=False) if is_single else choice


def _allowed(given: Json, path: str) -> ToolChoice:
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
    """Return the name of a tool that a choice names, as the model is shown it."""
    holders = (given.get(key) for key in ("function", "custom")) if isinstance(given, dict) else ()
    inner = next((one for one in holders if isinstance(one, dict)), given)
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(name, str):
        raise bad_field(f"{path}.name", "must be the name of one of the tools", "invalid_type")
    namespace = inner.get("namespace")
    return function_name(namespace if isinstance(namespace, str) else None, name)
