"""Tools of a request to /v1/responses: only functions, whose fields are not nested as in chats."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator

from server.requests.tools import MAX_TOOLS, FunctionDefinition
from server.validation.field_errors import field_error
from server.validation.fields import RequestModel, unsupported
from server.validation.unions import tagged_union

_FUNCTIONS_ONLY = {"": "but this server runs no tools; send functions and run them yourself"}


def _check_count(given: object) -> object:
    """Refuse too many tools before validating each."""
    if isinstance(given, list) and len(given) > MAX_TOOLS:
        raise field_error("invalid_value", f"has {len(given)} entries; at most {MAX_TOOLS} are allowed")
    return given


class NamedFunction(RequestModel):
    """One of the tools, named."""

    type: Literal["function"]
    name: str = Field(description="The function's name.")


class AllowedTools(RequestModel):
    """The subset of the tools that the model may call."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = Field(description="auto: the model may call one; required: it must.")
    tools: Annotated[list[NamedFunction], BeforeValidator(_check_count)] = Field(
        description="The tools that may be called."
    )


class FunctionTool(FunctionDefinition):
    """A function that the model may ask the client to call."""

    type: Literal["function"]
    output_schema: dict[str, Any] | None = Field(None, description="Accepted; not shown to the model.")
    defer_loading: unsupported(False) = None  # type: ignore[valid-type]
    allowed_callers: unsupported(["direct"]) = None  # type: ignore[valid-type]
    is_async: unsupported(False) = Field(None, alias="async")  # type: ignore[valid-type]


_one_choice = tagged_union(
    {"function": NamedFunction, "allowed_tools": AllowedTools}, refused=_FUNCTIONS_ONLY
)


def _tool_choice(given: object) -> Any:
    if not isinstance(given, str):
        return _one_choice(given)
    if given not in ("none", "auto", "required"):
        raise field_error(
            "invalid_value", "must be 'none', 'auto', 'required' or an object that names a function"
        )
    return given


AnyChoice = Literal["none", "auto", "required"] | NamedFunction | AllowedTools
ToolChoice = Annotated[AnyChoice, PlainValidator(_tool_choice, json_schema_input_type=AnyChoice)]
Tools = Annotated[
    list[
        Annotated[
            FunctionTool,
            PlainValidator(
                tagged_union({"function": FunctionTool}, refused=_FUNCTIONS_ONLY),
                json_schema_input_type=FunctionTool,
            ),
        ],
    ],
    BeforeValidator(_check_count),
]
