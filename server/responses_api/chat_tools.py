"""Show the tools of a Responses request to the model as a chat's, and name its calls as the client does.

A tool in a namespace is shown under both names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from server.conversation.tools import function_name
from server.responses_api.tools import (
    AnyTool,
    CustomTool,
    FunctionTool,
    GrammarInput,
    IgnoredTool,
    NamespaceTool,
)


@dataclass(frozen=True, slots=True)
class ShownTool:
    """A tool as the model is shown it. origin: its path in the request. namespace: None if it is in none."""

    origin: str
    tool: FunctionTool | CustomTool
    namespace: str | None = None

    @property
    def name(self) -> str:
        """The name that the model is shown."""
        return function_name(self.namespace, self.tool.name)

    def as_chat(self) -> dict[str, Any]:
        """Return the tool in the form of a chat request."""
        names = {"description", "parameters", "strict"}
        fields = self.tool.model_dump(include=names, exclude_unset=True)
        if isinstance(self.tool, CustomTool) and isinstance(self.tool.format, GrammarInput):
            grammar = self.tool.format.model_dump(include={"syntax", "definition"})
            fields["format"] = {"type": "grammar", "grammar": grammar}
        return {"type": self.tool.type, self.tool.type: {"name": self.name, **fields}}


def show_tools(tools: Sequence[AnyTool]) -> list[ShownTool]:
    """Return the tools that the model is shown, in order."""
    shown = []
    for index, tool in enumerate(tools):
        origin = f"tools[{index}]"
        match tool:
            case FunctionTool() | CustomTool():
                shown.append(ShownTool(origin, tool))
            case NamespaceTool():
                inner = enumerate(tool.tools)
                shown += [ShownTool(f"{origin}.tools[{at}]", one, tool.name) for at, one in inner]
    return shown


def ignored_tools(tools: Sequence[AnyTool]) -> list[str]:
    """Return the paths and types of the tools that are left out."""
    return [
        f"tools[{index}].{tool.type}" for index, tool in enumerate(tools) if isinstance(tool, IgnoredTool)
    ]
