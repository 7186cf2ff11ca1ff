"""Free-form tools: their input is text, which may have to follow a grammar.

Models are shown such a tool as a function with one argument, `input`.
"""

from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from server.requests.function_tools import FunctionDefinition, ToolName
from server.tool_formats.free_text import input_schema
from server.tool_formats.json_lark import escape_lark
from server.validation.field_errors import field_error
from server.validation.fields import RequestModel
from server.validation.lark import check_lark
from server.validation.regex import check_regex
from server.validation.unions import tagged_union


class TextInput(RequestModel):
    """Any text."""

    type: Literal["text"]


def _definition(given: object) -> str:
    if not isinstance(given, str) or not given:
        raise field_error("invalid_type", "must be a grammar, as a string that is not empty")
    return given


class GrammarDefinition(RequestModel):
    """A grammar of the input. It is enforced."""

    syntax: Literal["lark", "regex"] = Field(description="The syntax of the definition.")
    definition: Annotated[str, BeforeValidator(_definition, json_schema_input_type=str)] = Field(
        description="A regular expression, or a grammar in llguidance's variant of Lark."
    )

    @model_validator(mode="after")
    def check_definition(self) -> "GrammarDefinition":
        """Refuse a grammar that is too large, or that cannot be followed within JSON."""
        if self.syntax == "regex":
            check_regex(self.definition, ".definition")
            return self
        check_lark(self.definition, ".definition")
        try:
            escape_lark(self.definition)
        except ValueError as fault:
            raise field_error("unsupported_value", str(fault), ".definition") from None
        return self


class GrammarInput(RequestModel):
    """Text that follows a grammar."""

    type: Literal["grammar"]
    grammar: GrammarDefinition


InputFormat = Annotated[
    TextInput | GrammarInput,
    PlainValidator(
        tagged_union({"text": TextInput, "grammar": GrammarInput}),
        json_schema_input_type=TextInput | GrammarInput,
    ),
]


class CustomDefinition(RequestModel):
    """A free-form tool that the model may ask the client to call."""

    name: ToolName = Field(
        description="Name of the tool: letters, digits, underscores and dashes. Unique in a request."
    )
    description: str | None = Field(
        None, description="What the tool does and when to call it. Shown to the model."
    )
    format: InputFormat = Field(
        TextInput(type="text"), description="The format of the input; a grammar is enforced."
    )


class CustomTool(RequestModel):
    """A free-form tool."""

    schema_path: ClassVar[str] = "custom.format"

    type: Literal["custom"]
    custom: CustomDefinition = Field(description="The tool's name, description and format.")

    @cached_property
    def function(self) -> FunctionDefinition:
        """The function that the model is shown in its place."""
        parts = [self.custom.description] if self.custom.description else []
        pattern = None
        if (grammar := self._grammar) is not None:
            parts.append(f"The input follows this {grammar.syntax} grammar:\n{grammar.definition}")
            pattern = f"^(?:{grammar.definition})$" if grammar.syntax == "regex" else None
        return FunctionDefinition(
            name=self.custom.name,
            description="\n\n".join(parts) or None,
            parameters=input_schema(pattern),
            strict=pattern is not None,
        )

    @property
    def lark(self) -> str | None:
        """The Lark grammar of the input, if there is one."""
        grammar = self._grammar
        return grammar.definition if grammar is not None and grammar.syntax == "lark" else None

    @property
    def _grammar(self) -> GrammarDefinition | None:
        return self.custom.format.grammar if isinstance(self.custom.format, GrammarInput) else None
