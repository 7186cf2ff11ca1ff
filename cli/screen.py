"""Show a streaming answer: as Markdown by blocks in a terminal, as plain text elsewhere."""

import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

_FENCE = re.compile(r"^ {0,3}(```|~~~)", re.MULTILINE)


def finished_blocks(text: str) -> int:
    """Return the length of the leading complete Markdown blocks, which later text cannot change.

    A block ends at an empty line that is not within fenced code, nor before the rest of a list.
    """
    end = 0
    for found in re.finditer(r"\n[ \t]*\n", text):
        after = text[found.end() :].lstrip("\n")
        is_in_fence = len(_FENCE.findall(text[: found.start() + 1])) % 2 == 1
        is_list = re.match(r" {2,}\S|[-*+] |\d+[.)] ", after)
        if after and not is_in_fence and not is_list:
            end = found.end()
    return end


class AnswerScreen:
    """Shows a streaming answer: as Markdown in a terminal, as plain text elsewhere.

    Whole blocks are printed once and scroll away; only the last, unfinished one is drawn again.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._text = ""
        self._thought = ""
        self._status = "waiting"
        self._live = Live(console=console, transient=True, refresh_per_second=10, get_renderable=self._tail)

    def __enter__(self) -> "AnswerScreen":
        if self._console.is_terminal:
            self._live.start()
        return self

    def status(self, text: str) -> None:
        """Show a status line until the answer's text comes."""
        self._status = text

    def think(self, text: str) -> None:
        """Append to the reasoning, of which the screen shows only the end."""
        self._thought += text

    def write(self, text: str) -> None:
        """Append text to the answer on the screen."""
        if not self._console.is_terminal:
            self._console.out(text, end="", highlight=False)
            return
        self._text += text
        if whole := finished_blocks(self._text):
            self._live.console.print(Markdown(self._text[:whole].rstrip()), end="\n\n")
            self._text = self._text[whole:]

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._console.is_terminal:
            self._console.out("")
            return
        rest, self._text, self._status, self._thought = self._text, "", "", ""
        self._live.stop()
        if rest.strip():
            self._console.print(Markdown(rest))

    def _tail(self) -> Group:
        """Return the end of the unfinished line that fits on the screen."""
        room = max(3, self._console.height - 4)
        if self._text:
            return Group(Markdown("\n".join(self._text.splitlines()[-room:])))
        if self._thought:
            return Group(Text("\n".join(self._thought.splitlines()[-min(room, 6) :]), style="dim"))
        return Group(Text(self._status, style="dim"))


def describe_timings(timings: Mapping[str, Any] | None, was_cut: bool) -> str:
    """Describe an answer's length and speed from the response's timings; "" without timings.

    was_cut: whether the limit of tokens ended the answer.
    """
    if not timings or not timings.get("predicted_n"):
        return ""
    count, passes = timings["predicted_n"], timings.get("forwards") or 0
    parts = [f"{count} tokens"]
    if passes and passes < count:
        parts[0] += f" in {passes} forward passes"
    if speed := timings.get("predicted_per_second"):
        parts.append(f"{speed:.0f} tokens/s")
    if was_cut:
        parts.append("cut off by the limit of tokens")
    return ", ".join(parts)
