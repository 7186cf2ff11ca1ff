"""An agent's chats about changes of files: it reads a file, and writes the change in some form.

The answers are messages, so the model's chat template determines the tokens of a call.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from typing import Any

from reprise.bench.workloads.chats import Chat, Message, Turn, user

CONTEXT_LINES = 2
"""Unchanged lines before and after each change that an edit or a block repeats."""
NUMBERS = {
    "plain": "{line}", "arrow": "{number:6}→{line}", "tab": "{number:6}\t{line}",
    "colon": "{number}: {line}", "bar": "{number:05}| {line}",
}  # fmt: skip
"""How a tool shows each line of a file, by name."""

_SYSTEM = "You are a coding agent in the user's repository. Read a file before you change it."
_ASKS_FOR_BLOCKS = "Answer with SEARCH/REPLACE blocks, each with the path of its file above it."

Answer = str | tuple[str, dict[str, str]]
"""The assistant's text, or the tool that it calls and the arguments."""


@dataclass(frozen=True, slots=True)
class Change:
    """A file before and after a change. id: the commit and the path. message: the request for the change."""

    id: str
    message: str
    path: str
    before: str
    after: str


def tool_of(name: str, about: str, keys: Sequence[str]) -> dict[str, Any]:
    """Make a tool in OpenAI's format. about: its description. keys: its arguments, all required texts."""
    properties = {key: {"type": "string"} for key in keys}
    parameters = {"type": "object", "properties": properties, "required": list(keys)}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


TOOLS = (
    tool_of("Read", "Read a file. The result may have the number of each line.", ("file_path",)),
    tool_of("Edit", "Replace old_string, which must occur exactly once in the file, by new_string.",
            ("file_path", "old_string", "new_string")),
    tool_of("Write", "Write a file. What was in it is lost.", ("file_path", "content")),
    tool_of("apply_patch", "Change files by a patch, from *** Begin Patch to *** End Patch.", ("input",)),
    tool_of("Bash", "Run a command in a shell, and return what it prints.", ("command", "description")),
    tool_of("Grep", "Search for a regular expression in the files below a folder.", ("pattern", "path")),
    tool_of("Glob", "Return the paths that match a pattern such as **/*.py.", ("pattern",)),
    tool_of("WebFetch", "Fetch a page, and answer a question about it.", ("url", "prompt")),
)  # fmt: skip


def call_text(name: str, arguments: dict[str, str]) -> str:
    """Return the text of a tool call in the most common format; some models use other formats."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def agent_chats(changes: Iterable[Change], forms: Sequence[str], numbers: Sequence[str]) -> Iterator[Chat]:
    """Yield a chat for each change, each form of FORMS, and each line numbering of NUMBERS.

    The chat's workload names the form and the way. With the form "blocks", as aider has them, and "whole", a
    prompt without a template, the file is in the user's message, and its lines are not numbered.
    """
    for change in changes:
        for form in forms:
            if form == "blocks":
                yield Chat(form, (_with_file_attached(change),))
            elif form == "whole":
                asked = f"{change.message}\n\nAnswer with the whole file {change.path}."
                shown = f"{asked}\n\n```\n{change.before}```\n"
                yield Chat(form, (Turn((), f"```\n{change.after}```\n", text=shown),))
            else:
                more = " Answer with a unified diff." if form == "diff" else ""
                asked = f"{change.message}\n\nThe file is {change.path}.{more}"
                for way in numbers:
                    steps = (("", answer) for answer in ANSWERS[form](change))
                    yield Chat(f"{form} {way}", tuple(agent_turns(asked, change, way, steps)))


def agent_turns(asked: str, change: Change, way: str, steps: Iterable[tuple[str, Answer]]) -> Iterator[Turn]:
    """Yield a turn for each step of an agent that has read the file as it was before the change.

    asked: the user's request. way: one of NUMBERS. steps: the user's further message or "", and the right
    answer. The messages of a turn hold all earlier calls and their results.
    """
    lines = enumerate(change.before.removesuffix("\n").split("\n"), 1)
    result = "\n".join(NUMBERS[way].format(number=number, line=line) for number, line in lines)
    messages: list[Message] = [{"role": "system", "content": _SYSTEM}, user(asked)]
    reads = "", ("Read", {"file_path": change.path})
    for at, (said, answer) in enumerate((reads, *steps)):
        messages += [user(said)] if said else []
        message = _message_of(answer, f"call_{at}")
        if at:
            reference = answer if isinstance(answer, str) else call_text(*answer)
            yield Turn(tuple(messages), reference, tools=TOOLS, answer=message)
        messages += message, {"role": "tool", "tool_call_id": f"call_{at}", "content": result}
        result = "The file has been updated."


def _message_of(answer: Answer, call_id: str = "") -> Message:
    """Make the assistant's message."""
    if isinstance(answer, str):
        return {"role": "assistant", "content": answer}
    name, arguments = answer
    function = {"name": name, "arguments": json.dumps(arguments)}
    made = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [made]}


def _with_file_attached(change: Change) -> Turn:
    shown = f"These are the files.\n\n{change.path}\n```\n{change.before}```"
    earlier = {"role": "system", "content": _ASKS_FOR_BLOCKS}, user(shown), _message_of("Ok.")
    marks = "{}\n```\n<<<<<<< SEARCH\n{}=======\n{}>>>>>>> REPLACE\n```"
    blocks = "\n\n".join(marks.format(change.path, *hunk) for hunk in _hunks(change))
    return Turn((*earlier, user(change.message)), blocks)


def _hunks(change: Change) -> Iterator[tuple[str, str]]:
    """Yield the lines of each place that changes and around it, before and after."""
    before, after = change.before.splitlines(True), change.after.splitlines(True)
    for group in SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(CONTEXT_LINES):
        (_, old, _, new, _), (_, _, old_end, _, new_end) = group[0], group[-1]
        yield "".join(before[old:old_end]), "".join(after[new:new_end])


def _edits(change: Change) -> Iterator[Answer]:
    for old, new in _hunks(change):
        strings = {"old_string": old.removesuffix("\n"), "new_string": new.removesuffix("\n")}
        yield "Edit", {"file_path": change.path, **strings}


def _whole(change: Change) -> Iterator[Answer]:
    yield "Write", {"file_path": change.path, "content": change.after}


def _patch(change: Change) -> Iterator[Answer]:
    lines = ("@@" if line.startswith("@@") else line for line in _diff_lines(change)[2:])
    whole = "*** Begin Patch", f"*** Update File: {change.path}", *lines, "*** End Patch"
    yield "apply_patch", {"input": "\n".join(whole)}


def _diff(change: Change) -> Iterator[Answer]:
    yield "\n".join(("```diff", *_diff_lines(change), "```"))


def _diff_lines(change: Change) -> list[str]:
    texts = change.before.splitlines(), change.after.splitlines()
    return [*unified_diff(*texts, f"a/{change.path}", f"b/{change.path}", lineterm="")]


ANSWERS: dict[str, Callable[[Change], Iterator[Answer]]] = {
    "edit": _edits, "write": _whole, "patch": _patch, "diff": _diff,
}  # fmt: skip
"""How an agent writes a change: a call for each place, the whole file, a patch, or a diff."""
FORMS = (*ANSWERS, "blocks", "whole")
"""The same, blocks as aider has them, and the whole file as text."""
