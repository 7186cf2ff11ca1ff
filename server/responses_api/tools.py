"""Tools of a request to /v1/responses: functions, free-form tools, and namespaces of both.

This server runs no tools itself. Those that OpenAI would run, or that a client builds in, are left out and
named in the header x-reprise-ignored.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator

from server.conversation.tools import MAX_TOOLS
from server.requests.custom_tools import CustomDefinition, GrammarDefinition, TextInput
from server.requests.function_tools import FunctionDefinition
from server.validation.field_errors import field_error
from server.validation.fields import RequestModel, unsupported
from server.validation.unions import tagged_union

_NOT_RUN = {"": "but this server runs no tools; send functions and run them yourself"}
IGNORED_TYPES = (
    *("apply_patch", "code_interpreter", "computer", "computer_use", "computer_use_preview", "file_search"),
    *("image_generation", "local_shell", "mcp", "programmatic_tool_calling", "shell", "tool_search"),
    *("web_search", "web_search_preview", "web_search_2025_08_26", "web_search_preview_2025_03_11"),
)
"""Types of tools that are left out: OpenAI runs them, or a client does that has its own format for them."""


def _check_count(given: object) -> object:
    """Refuse too many tools before validating each."""
    if isinstance(given, list) and len(given) > MAX_TOOLS:
        raise field_error("invalid_value", f"has {len(given)} entries; at most {MAX_TOOLS} are allowed")
    return given


class NamedFunction(RequestModel):
    """One of the tools, named."""

    type: Literal["function"]
    name: str = Field(description="The function's name.")
    namespace: str | None = Field(None, description="The namespace that the function is in.")


class NamedCustom(RequestModel):
    """One of the free-form tools, named."""

    type: Literal["custom"]
    name: str = Field(description="The tool's name.")
    namespace: str | None = Field(None, description="The namespace that the tool is in.")


_NAMED: dict[str, type[RequestModel]] = {"function": NamedFunction, "custom": NamedCustom}
NamedTool = Annotated[
    NamedFunction | NamedCustom,
    PlainValidator(
        tagged_union(_NAMED, refused=_NOT_RUN), json_schema_input_type=NamedFunction | NamedCustom
    ),
]


class AllowedTools(RequestModel):
    """The subset of the tools that the model may call."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = Field(description="auto: the model may call one; required: it must.")
    tools: Annotated[list[NamedTool], BeforeValidator(_check_count)] = Field(
        description="The tools that may be called."
    )


class _ClientTool(RequestModel):
    """The fields that functions and free-form tools share."""

    defer_loading: bool = Field(False, description="Accepted; every tool is shown to the model at once.")
    allowed_callers: unsupported(["direct"]) = None  # type: ignore[valid-type]
    is_async: unsupported(False) = Field(None, alias="async")  # type: ignore[valid-type]


class FunctionTool(FunctionDefinition, _ClientTool):
    """A function that the model may ask the client to call."""

    type: Literal["function"]
    output_schema: dict[str, Any] | None = Field(None, description="Accepted; not shown to the model.")


class GrammarInput(GrammarDefinition):
    """Text that follows a grammar."""

    type: Literal["grammar"]


InputFormat = Annotated[
    TextInput | GrammarInput,
    PlainValidator(
        tagged_union({"text": TextInput, "grammar": GrammarInput}),
        json_schema_input_type=TextInput | GrammarInput,
    ),
]


class CustomTool(CustomDefinition, _ClientTool):
    """A free-form tool: its input is text, not JSON."""

    type: Literal["custom"]
    format: InputFormat = Field(  # type: ignore[assignment]
        TextInput(type="text"), description="The format of the input; a grammar is enforced."
    )


_CLIENT_TOOLS: dict[str, type[RequestModel]] = {"function": FunctionTool, "custom": CustomTool}


class NamespaceTool(RequestModel):
    """A group of tools. The model is shown them under the namespace's name and their own."""

    type: Literal["namespace"]
    name: str = Field(min_length=1, description="The namespace's name.")
    description: str | None = Field(None, description="Accepted; not shown to the model.")
    tools: Annotated[
        list[
            Annotated[
                FunctionTool | CustomTool,
                PlainValidator(tagged_union(_CLIENT_TOOLS), json_schema_input_type=FunctionTool | CustomTool),
            ]
        ],
        BeforeValidator(_check_count),
    ] = Field(description="The tools in the namespace.")


class IgnoredTool(RequestModel):
    """A tool that is left out. Its fields are not read."""

    model_config = ConfigDict(extra="ignore")

    type: str = Field(
        description="A tool that OpenAI's servers or the client itself would run, such as local_shell or "
        "web_search; it is left out."
    )


AnyTool = FunctionTool | CustomTool | NamespaceTool | IgnoredTool
_KINDS: dict[str, type[RequestModel]] = {
    **_CLIENT_TOOLS,
    "namespace": NamespaceTool,
    **dict.fromkeys(IGNORED_TYPES, IgnoredTool),
}

_one_choice = tagged_union({**_NAMED, "allowed_tools": AllowedTools}, refused=_NOT_RUN)


def _tool_choice(given: object) -> Any:
    if not isinstance(given, str):
        return _one_choice(given)
    if given not in ("none", "auto", "required"):
        raise field_error(
            "invalid_value", "must be 'none', 'auto', 'required' or an object that names a function"
        )
    return given


AnyChoice = Literal["none", "auto", "required"] | NamedFunction | NamedCustom | AllowedTools
ToolChoice = Annotated[AnyChoice, PlainValidator(_tool_choice, json_schema_input_type=AnyChoice)]
Tools = Annotated[
    list[Annotated[AnyTool, PlainValidator(tagged_union(_KINDS), json_schema_input_type=AnyTool)]],
    BeforeValidator(_check_count),
]
