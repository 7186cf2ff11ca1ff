"""The tools of a chat request, and which of them the model may or must call."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from server.errors import shortened
from server.validation.field_errors import field_error
from server.validation.fields import RequestModel
from server.validation.json_schema import MAX_SCHEMA_BYTES, check_schema

MAX_TOOLS = 128
MAX_NAME_CHARACTERS = 64
MAX_ENFORCED_BYTES = 2 * MAX_SCHEMA_BYTES
"""Of all schemas of one request that a grammar is made of: a fifth of a second, once."""
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

ToolName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS, pattern=r"^[a-zA-Z0-9_-]+$")]


def _parameters(given: dict[str, Any]) -> dict[str, Any]:
    if given.get("type", "object") != "object":
        raise field_error("invalid_value", "must be 'object': arguments are an object", ".type")
    return given


class FunctionDefinition(RequestModel):
    """A function that the model may ask the client to call."""

    name: ToolName = Field(description="1 to 64 letters, digits, underscores and dashes; each name once.")
    description: str | None = Field(
        None, description="What it does and when to call it; the model reads this."
    )
    parameters: Annotated[dict[str, Any], AfterValidator(_parameters)] = Field(
        _NO_PARAMETERS, description="A JSON schema of the arguments, an object; without it there are none."
    )
    strict: bool = Field(False, description="Whether the arguments of every call must follow the schema.")


class Tool(RequestModel):
    """A tool; there are only functions."""

    type: Literal["function"] = Field(description="Only functions: nothing is run on the server.")
    function: FunctionDefinition = Field(description="What can be called, and with which arguments.")

    def for_template(self) -> dict[str, Any]:
        """The tool as chat templates and parsers of calls expect it."""
        function: dict[str, Any] = {"name": self.function.name}
        if self.function.description is not None:
            function["description"] = self.function.description
        return {"type": "function", "function": function | {"parameters": self.function.parameters}}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What the model may do with the tools.

    names: those that it may call; None for all. is_named: there is one, and it must be called.
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
                f"is '{tool.function.name}', as an earlier tool's; each name may stand once",
                f"[{index}].function.name",
            )
        seen.add(tool.function.name)
    return tools


def _tools(given: object) -> object:
    return tuple(given) if isinstance(given, list) else given


def _tool_choice(given: object) -> ToolChoice:
    if isinstance(given, ToolChoice):
        return given
    if isinstance(given, str):
        match given:
            case "none" | "auto" | "required":
                return ToolChoice(given)
        raise field_error(
            "invalid_value", "must be 'none', 'auto', 'required' or an object that names a function"
        )
    if not isinstance(given, dict):
        raise field_error("invalid_type", "must be a string or an object")
    match given.get("type"):
        case "function":
            _check_keys(given, {"type", "function"}, "")
            return ToolChoice("required", (_function_name(given.get("function"), ".function"),), True)
        case "allowed_tools":
            _check_keys(given, {"type", "allowed_tools"}, "")
            return _allowed(given.get("allowed_tools"), ".allowed_tools")
    raise field_error("invalid_value", "must be 'function' or 'allowed_tools'", ".type")


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
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise field_error("invalid_value", "must be an object with the type 'function'", here)
        _check_keys(tool, {"type", "function"}, here)
        names.append(_function_name(tool.get("function"), f"{here}.function"))
    return ToolChoice("required" if mode == "required" else "auto", tuple(dict.fromkeys(names)))


def _function_name(given: object, at: str) -> str:
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
    """Refuse a choice that the tools do not leave."""
    if not tools and (choice.mode == "required" or choice.names is not None):
        raise field_error("invalid_value", "is allowed only with tools; send some", "tool_choice")
    known = {tool.function.name for tool in tools}
    for name in choice.names or ():
        if name not in known:
            phrase = f"names the function '{shortened(name)}', which is not among the tools"
            raise field_error("invalid_value", phrase, "tool_choice")


def check_enforced(tools: Sequence[Tool], names: Collection[str]) -> None:
    """Refuse schemas that would have to be enforced and cannot be. names: the tools they belong to."""
    num_bytes = 0
    for index, tool in enumerate(tools):
        if tool.function.name in names:
            num_bytes += len(check_schema(tool.function.parameters, f"tools[{index}].function.parameters"))
    if num_bytes > MAX_ENFORCED_BYTES:
        phrase = (
            f"have {num_bytes} bytes of schemas to enforce; at most {MAX_ENFORCED_BYTES} are allowed. "
            "Send fewer tools, or smaller ones"
        )
        raise field_error("schema_too_large", phrase, "tools")


Tools = Annotated[
    tuple[Tool, ...],
    Field(max_length=MAX_TOOLS),
    BeforeValidator(_tools, json_schema_input_type=list[Tool]),
    AfterValidator(_unique),
]
ToolChoiceField = Annotated[
    ToolChoice,
    BeforeValidator(
        _tool_choice, json_schema_input_type=Literal["none", "auto", "required"] | dict[str, Any]
    ),
]
