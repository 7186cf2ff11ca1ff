"""Whether the model thinks before it responds, and whether the response shows the thinking."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from reprise.server.validation.fields import INT32_MAX, RequestModel


class Thinking(RequestModel):
    """Whether to think before responding, if the chat template has a choice."""

    type: str = Field(description="disabled: do not think; enabled, adaptive and any other: think.")
    budget_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = Field(
        None,
        description="Maximum tokens of the thinking: at this number it is ended. null, or not below "
        "max_tokens: no limit.",
    )
    display: Literal["summarized", "omitted"] = Field(
        "summarized",
        description="summarized: return all thinking; omitted: leave its text out of the response.",
    )

    @model_validator(mode="before")
    @classmethod
    def without_budget(cls, given: Any) -> Any:
        """Leave out the budget of what is disabled: clients send 0 there."""
        if not isinstance(given, dict) or given.get("type") != "disabled":
            return given
        return {name: value for name, value in given.items() if name != "budget_tokens"}

    @property
    def is_on(self) -> bool:
        """Whether to think."""
        return self.type != "disabled"
