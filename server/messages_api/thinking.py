"""Whether the model thinks before it responds, and whether the response shows the thinking."""

from typing import Annotated, Literal

from pydantic import Field

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

    @property
    def is_on(self) -> bool:
        """Whether to think."""
        return self.type != "disabled"
