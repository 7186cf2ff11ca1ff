"""Functions that the model may ask the client to call."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from server.validation.field_errors import field_error
from server.validation.fields import RequestModel

MAX_NAME_CHARACTERS = 128
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

ToolName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS, pattern=r"^[a-zA-Z0-9_.:/-]+$")]


def _parameters(given: dict[str, Any]) -> dict[str, Any]:
    if given.get("type", "object") != "object":
        raise field_error("invalid_value", "must be 'object'", ".type")
    return given


class FunctionDefinition(RequestModel):
    """A function that the model may ask the client to call."""

    name: ToolName = Field(
        description="Name of the function: letters, digits, underscores and dashes. Unique in a request."
    )
    description: str | None = Field(
        None, description="What the function does and when to call it. Shown to the model."
    )
    parameters: Annotated[dict[str, Any], AfterValidator(_parameters)] = Field(
        _NO_PARAMETERS,
        description="JSON schema of the arguments; its type must be object. null: no arguments.",
    )
    strict: bool = Field(False, description="Whether to enforce the schema on the arguments of every call.")

    def for_template(self) -> dict[str, Any]:
        """Return the tool as chat templates and tool call parsers expect it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": function | {"parameters": self.parameters}}


class FunctionTool(RequestModel):
    """A function."""

    schema_path: ClassVar[str] = "function.parameters"
    lark: ClassVar[None] = None

    type: Literal["function"] = Field(description="The kind of tool: the server runs none itself.")
    function: FunctionDefinition = Field(description="The function's name, description and parameters.")
