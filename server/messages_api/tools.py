"""The tools of a request, and the tool choice."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator
from pydantic_core import to_json

from server.conversation.tools import MAX_TOOLS
from server.messages_api.blocks import CacheControl, too_many
from server.requests.function_tools import ToolName
from server.validation.field_errors import field_error
from server.validation.fields import RequestModel, unsupported
from server.validation.unions import tagged_union

_SERVER_TOOL = "which only Anthropic's servers run; send tools with a name and an input_schema"
_CLIENT_TOOL = "whose schema is Anthropic's own; send it with a name and an input_schema, without type"
_REFUSED = {
    "web_": _SERVER_TOOL,
    "code_execution": _SERVER_TOOL,
    "tool_search": _SERVER_TOOL,
    "mcp_": _SERVER_TOOL,
    "bash": _CLIENT_TOOL,
    "text_editor": _CLIENT_TOOL,
    "memory": _CLIENT_TOOL,
    "computer": _CLIENT_TOOL,
    "browser": _CLIENT_TOOL,
}
_DEFERRED = {
    "phrase": "is not supported: this server has no tool search; leave it out",
    "description": "Only false.",
}


def _input_schema(given: dict[str, Any]) -> dict[str, Any]:
    if given.get("type") != "object":
        raise field_error("invalid_value", "must be 'object': the input of a tool is an object", ".type")
    return given


def _callers(given: list[str]) -> list[str]:
    if given != ["direct"]:
        raise field_error(
            "unsupported_value", "must be ['direct']: this server runs no code that could call tools"
        )
    return given


class CustomTool(RequestModel):
    """A tool that the client defines and runs."""

    type: Literal["custom"] = "custom"
    name: ToolName = Field(description="1 to 64 letters, digits, underscores and dashes; each name once.")
    description: str | None = Field(
        None, description="What the tool does and when to call it; shown to the model."
    )
    input_schema: Annotated[dict[str, Any], AfterValidator(_input_schema)] = Field(
        description="A JSON schema of the input, which must be an object."
    )
    strict: bool = Field(False, description="Whether to enforce the schema for the input of every call.")
    input_examples: list[dict[str, Any]] = Field(
        [], description="Examples of the input; shown to the model after the description."
    )
    cache_control: CacheControl | None = Field(None, description="Accepted; has no effect.")
    eager_input_streaming: bool = Field(False, description="Accepted; inputs are sent as they are written.")
    allowed_callers: Annotated[list[str], AfterValidator(_callers)] = Field(
        ["direct"], description="Only ['direct']."
    )
    defer_loading: unsupported(False, **_DEFERRED) = None  # type: ignore[valid-type]

    def as_function(self) -> dict[str, Any]:
        """Return the tool in OpenAI's format."""
        function: dict[str, Any] = {
            "name": self.name,
            "parameters": self.input_schema,
            "strict": self.strict,
        }
        paragraphs = [self.description] if self.description else []
        if self.input_examples:
            examples = "\n".join(to_json(example).decode() for example in self.input_examples)
            paragraphs.append(f"Examples of input:\n{examples}")
        if paragraphs:
            function["description"] = "\n\n".join(paragraphs)
        return {"type": "function", "function": function}


Tool = Annotated[
    CustomTool,
    PlainValidator(
        tagged_union({"custom": CustomTool}, refused=_REFUSED, default="custom"),
        json_schema_input_type=CustomTool,
    ),
]


def _check_count(given: object) -> object:
    if isinstance(given, list) and len(given) > MAX_TOOLS:
        raise too_many(len(given), MAX_TOOLS)
    return given


def _unique(given: list[CustomTool]) -> list[CustomTool]:
    names = [tool.name for tool in given]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise field_error(
                "invalid_value", "is used twice; each tool needs its own name", f"[{index}].name"
            )
    return given


Tools = Annotated[
    list[Tool],
    BeforeValidator(_check_count, json_schema_input_type=list[CustomTool]),
    AfterValidator(_unique),
]


class Choice(RequestModel):
    """The field that all tool choices except none have."""

    disable_parallel_tool_use: bool = Field(False, description="Whether to allow at most one tool call.")


class AutoChoice(Choice):
    """The model decides."""

    type: Literal["auto"]

    def as_openai(self) -> str:
        """Return the tool choice in OpenAI's format."""
        return "auto"


class AnyChoice(Choice):
    """The model must call a tool."""

    type: Literal["any"]

    def as_openai(self) -> str:
        """Return the tool choice in OpenAI's format."""
        return "required"


class NamedChoice(Choice):
    """The model must call this tool."""

    type: Literal["tool"]
    name: str = Field(description="The tool that must be called.")

    def as_openai(self) -> dict[str, Any]:
        """Return the tool choice in OpenAI's format."""
        return {"type": "function", "function": {"name": self.name}}


class NoChoice(RequestModel):
    """The model must not call a tool."""

    type: Literal["none"]

    def as_openai(self) -> str:
        """Return the tool choice in OpenAI's format."""
        return "none"


_Choices = AutoChoice | AnyChoice | NamedChoice | NoChoice
_KINDS = {"auto": AutoChoice, "any": AnyChoice, "tool": NamedChoice, "none": NoChoice}
ToolChoice = Annotated[_Choices, PlainValidator(tagged_union(_KINDS), json_schema_input_type=_Choices)]
