"""The tools of a chat request, and tool_choice: which of them the model may or must call."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, PlainValidator

from server.errors import shortened
from server.requests.custom_tools import CustomTool
from server.requests.function_tools import FunctionTool
from server.validation.field_errors import field_error
from server.validation.fields import RequestModel
from server.validation.json_schema import MAX_SCHEMA_BYTES, check_schema
from server.validation.relaxed_schema import relaxations
from server.validation.unions import tagged_union

MAX_TOOLS = 128
MAX_ENFORCED_BYTES = 2 * MAX_SCHEMA_BYTES
"""Limit for all enforced schemas of a request together: compiling this much takes a fifth of a second."""
Tool = FunctionTool | CustomTool
_KINDS: dict[str, type[RequestModel]] = {"function": FunctionTool, "custom": CustomTool}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """A parsed tool_choice.

    names: the tools that the model may call; None for all. is_named: it must call the one in names.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    names: tuple[str, ...] | None = None
    is_named: bool = False


def _unique(tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.function.name in seen:
            raise field_error(
                "invalid_value",
                f"is '{tool.function.name}', which is also the name of an earlier tool; names must be unique",
                f"[{index}].{tool.type}.name",
            )
        seen.add(tool.function.name)
    return tools


def _tools(given: object) -> object:
    if isinstance(given, list) and len(given) > MAX_TOOLS:
        raise field_error("invalid_value", f"has {len(given)} entries; at most {MAX_TOOLS} are allowed")
    return tuple(given) if isinstance(given, list) else given


def _tool_choice(given: object) -> ToolChoice:
    if isinstance(given, ToolChoice):
        return given
    if isinstance(given, str):
        match given:
            case "none" | "auto" | "required":
                return ToolChoice(given)
        raise field_error(
            "invalid_value", "must be 'none', 'auto', 'required' or an object that names a tool"
        )
    if not isinstance(given, dict):
        raise field_error("invalid_type", "must be a string or an object")
    match given.get("type"):
        case "function" | "custom" as kind:
            _check_keys(given, {"type", kind}, "")
            return ToolChoice("required", (_name(given.get(kind), f".{kind}"),), True)
        case "allowed_tools":
            _check_keys(given, {"type", "allowed_tools"}, "")
            return _allowed(given.get("allowed_tools"), ".allowed_tools")
    raise field_error("invalid_value", "must be 'function', 'custom' or 'allowed_tools'", ".type")


def _allowed(given: object, at: str) -> ToolChoice:
    if not isinstance(given, dict):
        raise field_error("invalid_type", "must be an object with mode and tools", at)
    _check_keys(given, {"mode", "tools"}, at)
    mode, tools = given.get("mode"), given.get("tools")
    if mode != "auto" and mode != "required":
        raise field_error("invalid_value", "must be 'auto' or 'required'", f"{at}.mode")
    if not isinstance(tools, list) or not 0 < len(tools) <= MAX_TOOLS:
        raise field_error("invalid_value", f"must be an array of 1 to {MAX_TOOLS} tools", f"{at}.tools")
    names = []
    for index, tool in enumerate(tools):
        here = f"{at}.tools[{index}]"
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind not in _KINDS:
            raise field_error("invalid_value", "must be an object of type 'function' or 'custom'", here)
        _check_keys(tool, {"type", kind}, here)
        names.append(_name(tool.get(kind), f"{here}.{kind}"))
    return ToolChoice("required" if mode == "required" else "auto", tuple(dict.fromkeys(names)))


def _name(given: object, at: str) -> str:
    if not isinstance(given, dict):
        raise field_error("invalid_type", "must be an object with a name", at)
    _check_keys(given, {"name"}, at)
    if not isinstance(given.get("name"), str):
        raise field_error("invalid_type", "must be the name of one of the tools", f"{at}.name")
    return str(given["name"])


def _check_keys(given: dict[str, Any], known: set[str], at: str) -> None:
    for key in given.keys() - known:
        raise field_error("unknown_parameter", "is unknown", f"{at}.{key}")


def check_choice(tools: Sequence[Tool], choice: ToolChoice) -> None:
    """Refuse a tool_choice that names unknown tools, or that needs tools where there are none."""
    if not tools and (choice.mode == "required" or choice.names is not None):
        raise field_error("invalid_value", "is allowed only with tools; send some", "tool_choice")
    known = {tool.function.name for tool in tools}
    for name in choice.names or ():
        if name not in known:
            phrase = f"names the tool '{shortened(name)}', which is not among the tools"
            raise field_error("invalid_value", phrase, "tool_choice")


def check_enforced(tools: Sequence[Tool], names: Collection[str]) -> None:
    """Refuse schemas that must be enforced but cannot be. names: the tools whose schemas are enforced.

    Of a schema that is not strict, only what can be enforced counts.
    """
    num_bytes = 0
    for index, tool in enumerate(tools):
        if tool.function.name in names:
            schema, at = tool.function.parameters, f"tools[{index}].{tool.schema_path}"
            if not tool.function.strict:
                schema = next(relaxations(schema, at)).schema
            num_bytes += len(check_schema(schema, at))
    if num_bytes > MAX_ENFORCED_BYTES:
        phrase = (
            f"have {num_bytes} bytes of schemas to enforce; at most {MAX_ENFORCED_BYTES} are allowed. "
            "Send fewer or smaller ones"
        )
        raise field_error("schema_too_large", phrase, "tools")


def check_enforced_in_full(tools: Sequence[Tool]) -> None:
    """Refuse schemas that cannot be enforced in full. Raises PydanticCustomError."""
    for tool in tools:
        check_schema(tool.function.parameters)


Tools = Annotated[
    tuple[
        Annotated[Tool, PlainValidator(tagged_union(_KINDS), json_schema_input_type=Tool)],
        ...,
    ],
    BeforeValidator(_tools, json_schema_input_type=list[Tool]),
    AfterValidator(_unique),
]
ToolChoiceField = Annotated[
    ToolChoice,
    BeforeValidator(
        _tool_choice, json_schema_input_type=Literal["none", "auto", "required"] | dict[str, Any]
    ),
]
