"""Whether the model thinks before it responds, and whether the response shows the thinking."""

from typing import Annotated, Literal

from pydantic import Field, PlainValidator, model_validator

from server.validation.field_errors import field_error
from server.validation.fields import INT32_MAX, RequestModel
from server.validation.unions import tagged_union

MIN_BUDGET_TOKENS = 1024


class ThinkingOn(RequestModel):
    """Think before responding, if the chat template supports thinking."""

    type: Literal["enabled", "adaptive"]
    budget_tokens: int | None = Field(
        None,
        ge=MIN_BUDGET_TOKENS,
        le=INT32_MAX,
        description="Required with enabled. Maximum tokens of the thinking: at this number it is ended.",
    )
    display: Literal["summarized", "omitted"] = Field(
        "summarized",
        description="summarized: return all thinking; omitted: leave its text out of the response.",
    )

    @model_validator(mode="after")
    def check_budget(self) -> "ThinkingOn":
        """Refuse enabled without a budget and adaptive with one, as Anthropic does."""
        if self.type == "enabled" and self.budget_tokens is None:
            raise field_error("missing_required_parameter", "is missing", ".budget_tokens")
        if self.type == "adaptive" and self.budget_tokens is not None:
            raise field_error("invalid_value", "is allowed only with type 'enabled'", ".budget_tokens")
        return self


class ThinkingOff(RequestModel):
    """Respond without thinking, if the chat template supports that."""

    type: Literal["disabled"]


_THINKING = {"enabled": ThinkingOn, "adaptive": ThinkingOn, "disabled": ThinkingOff}
_REFUSED = {"between_tools": "which is not supported; use enabled, adaptive or disabled"}
Thinking = Annotated[
    ThinkingOn | ThinkingOff,
    PlainValidator(
        tagged_union(_THINKING, refused=_REFUSED), json_schema_input_type=ThinkingOn | ThinkingOff
    ),
]
