"""Whether the model is to think before it answers, and what is shown of that."""

from typing import Annotated, Literal

from pydantic import Field, PlainValidator, model_validator

from server.validation.field_errors import field_error
from server.validation.fields import INT32_MAX, RequestModel
from server.validation.unions import tagged_union

MIN_BUDGET_TOKENS = 1024


class ThinkingOn(RequestModel):
    """Think before the answer, if the chat template knows of thinking."""

    type: Literal["enabled", "adaptive"]
    budget_tokens: int | None = Field(
        None,
        ge=MIN_BUDGET_TOKENS,
        le=INT32_MAX,
        description="Accepted with enabled; here max_tokens alone limits thinking and answer together.",
    )
    display: Literal["summarized", "omitted"] = Field(
        "summarized", description="Summarized shows all of it; omitted leaves its text out of the answer."
    )

    @model_validator(mode="after")
    def budget_where_it_belongs(self) -> "ThinkingOn":
        """As Anthropic has it: enabled needs a budget, adaptive has none."""
        if self.type == "enabled" and self.budget_tokens is None:
            raise field_error("missing_required_parameter", "is missing", ".budget_tokens")
        if self.type == "adaptive" and self.budget_tokens is not None:
            raise field_error("invalid_value", "belongs to thinking of the type 'enabled'", ".budget_tokens")
        return self


class ThinkingOff(RequestModel):
    """ChoiceOutput without thinking, if the chat template knows how."""

    type: Literal["disabled"]


_THINKING = {"enabled": ThinkingOn, "adaptive": ThinkingOn, "disabled": ThinkingOff}
_NO_SUCH_THINKING = {"between_tools": "which this server does not have; use enabled, adaptive or disabled"}
Thinking = Annotated[
    ThinkingOn | ThinkingOff,
    PlainValidator(
        tagged_union(_THINKING, refused=_NO_SUCH_THINKING), json_schema_input_type=ThinkingOn | ThinkingOff
    ),
]
