"""Show the tools of a Responses request to the model as functions, and name its calls as the client does.

A tool in a namespace becomes a function with both names. A free-form tool becomes a function with one
argument, `input`, whose text follows the tool's grammar.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from server.requests.tools import MAX_NAME_CHARACTERS
from server.responses_api.tools import (
    AnyTool,
    CustomTool,
    FunctionTool,
    GrammarInput,
    IgnoredTool,
    NamespaceTool,
)

_INVALID = re.compile(r"[^a-zA-Z0-9_-]")
_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_PART = re.compile(r'[^"\\]+|\\u[dD][89abAB]..\\u....|\\u(?![dD][89abAB])....|\\[^u]')


def function_name(namespace: str | None, name: str) -> str:
    """Return the name under which the model is shown a tool."""
    if namespace is None:
        return name
    full = _INVALID.sub("_", f"{namespace}__{name}")
    if len(full) > MAX_NAME_CHARACTERS:
        digest = hashlib.sha256(full.encode()).hexdigest()[:8]
        full = f"{full[: MAX_NAME_CHARACTERS - 9]}_{digest}"
    return full


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

    @property
    def lark(self) -> str | None:
        """The Lark grammar of the input, if there is one."""
        tool = self.tool
        if isinstance(tool, CustomTool) and isinstance(tool.format, GrammarInput):
            return tool.format.definition if tool.format.syntax == "lark" else None
        return None

    def as_chat(self) -> dict[str, Any]:
        """Return the tool in the form of a chat request."""
        if isinstance(self.tool, FunctionTool):
            given = self.tool.model_dump(exclude_unset=True)
            names = ("description", "parameters", "strict")
            function = {name: given[name] for name in names if name in given}
        else:
            function = _as_function(self.tool)
        return {"type": "function", "function": {"name": self.name, **function}}


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


def _as_function(tool: CustomTool) -> dict[str, Any]:
    text: dict[str, Any] = {"type": "string"}
    function: dict[str, Any] = {}
    description = tool.description or ""
    if isinstance(tool.format, GrammarInput):
        description += f"\n\nThe input follows this {tool.format.syntax} grammar:\n{tool.format.definition}"
        if tool.format.syntax == "regex":
            text["pattern"] = f"^(?:{tool.format.definition})$"
            function["strict"] = True
    if description:
        function["description"] = description.strip()
    function["parameters"] = {
        "type": "object",
        "properties": {"input": text},
        "required": ["input"],
        "additionalProperties": False,
    }
    return function


class InputDecoder:
    """Decodes the input of a free-form tool from the JSON of its arguments, bit by bit."""

    def __init__(self) -> None:
        self._pending = ""
        self._is_inside = False

    def feed(self, arguments: str) -> str:
        """Add text of the arguments; return the text of the input that is certain."""
        self._pending += arguments
        if not self._is_inside:
            head = _HEAD.match(self._pending)
            if head is None:
                return ""
            self._is_inside = True
            self._pending = self._pending[head.end() :]
        decoded = []
        while (part := _PART.match(self._pending)) is not None:
            decoded.append(_decode(part[0]))
            self._pending = self._pending[part.end() :]
        return "".join(decoded)


def _decode(part: str) -> str:
    if not part.startswith("\\"):
        return part
    escapes = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
    if part[1] != "u":
        return escapes.get(part[1], part[1])
    try:
        units = [int(unit, 16) for unit in part.split("\\u")[1:]]
        return b"".join(unit.to_bytes(2, "big") for unit in units).decode("utf-16-be", "replace")
    except ValueError:
        return part
