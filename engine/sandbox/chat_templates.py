"""Render chat templates in a separate process.

A template is a program that comes with the model. transformers runs it in Jinja's sandbox, which keeps it
from code and files but not from looping forever or filling memory. A separate process can be killed, and
the sandbox is then not the only protection.
"""

import json
from pathlib import Path
from typing import Any

import transformers
from transformers import tokenization_utils_base

from reprise.engine.sandbox.child_process import ChildError, ChildProcess, Limits

TIME_LIMIT_S = 5.0
MEMORY_LIMIT_BYTES = 2 * 2**30


class RenderError(ValueError):
    """A template could not be rendered; the message is the template's own, or names the limit exceeded."""


class RenderLimitError(RenderError):
    """A template took too much time or memory."""


class TemplateProcess:
    """Renders chat templates in a process, in place of transformers' render_jinja_template().

    Safe on any thread.
    """

    def __init__(self, time_limit_s: float = TIME_LIMIT_S) -> None:
        limits = Limits(time_limit_s, time_limit_s, MEMORY_LIMIT_BYTES)
        self._process = ChildProcess("templates", Path(transformers.__file__).parent, limits)

    def start(self) -> None:
        """Start the process if it is not running; return without waiting for it."""
        self._process.start()

    def render(self, **call: Any) -> tuple[list[str], list[Any]]:
        """Render conversations. call: the arguments of render_jinja_template(). Raises RenderError."""
        try:
            reply = self._process.call(json.dumps(call, default=_placeholder).encode())
        except ChildError as fault:
            raise RenderLimitError(str(fault)) from None
        if "complaint" in reply:
            raise RenderError(reply["complaint"])
        return reply["rendered"], reply["indices"]

    def stop(self) -> None:
        """Kill the process."""
        self._process.stop()


def _placeholder(value: object) -> str:
    """Return the text that transformers puts in a prompt for a value that JSON cannot represent."""
    return f"<{type(value).__name__}>"


def for_python_template(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, arguments: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return messages and arguments as mlx-lm's templates in Python take them, such as DeepSeek V3.2's.

    These templates want the arguments of tool calls as text, want a system message if there are tools, and
    fail on arguments that they do not know.
    """
    shown = [{**message} for message in messages]
    for message in shown:
        calls = message.get("tool_calls", ())
        if calls:
            message["tool_calls"] = [{**call, "function": _with_text(call["function"])} for call in calls]
    if tools and shown[0]["role"] != "system":
        shown.insert(0, {"role": "system", "content": ""})
    return shown, {key: value for key, value in arguments.items() if key == "enable_thinking"}


def _with_text(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function["arguments"]
    is_text = isinstance(arguments, str)
    return {**function, "arguments": arguments if is_text else json.dumps(arguments, ensure_ascii=False)}


PROCESS = TemplateProcess()


def isolate_templates() -> None:
    """Render the templates of every tokenizer in PROCESS from now on, in calls from transformers too."""
    library: Any = tokenization_utils_base
    library.render_jinja_template = PROCESS.render
    PROCESS.start()
