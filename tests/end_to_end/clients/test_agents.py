"""Coding agents from their packages do a whole task against the real server, whose model follows a script.

They read a file, edit it and run it; what they leave on disk is what counts.
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.clients.agents import (
    AIDER,
    CLAUDE,
    CLINE,
    CODEX,
    CONTINUE,
    DONE_WITHIN_S,
    OPENCODE,
    QWEN,
    Agent,
    Call,
    connected,
    count_statuses,
    make_project,
)
from tests.end_to_end.clients.packages import INSTALLED_WITHIN_S
from tests.end_to_end.clients.scripted import (
    ANSWER_BEGINS,
    MODEL_BEGINS,
    Script,
    count_shared,
    recording,
    serving_script,
    write_json,
)
from tests.engine.support import make_tokenizer

TEMPLATES = Path(__file__).parents[2] / "engine/text/templates"

TASK = "Set PRICE to 8 in shop.py and run it."
DONE = "All is done."
SHOP = '''"""Prices of a small shop."""

PRICE = 7
WORDS = {1: "one", 2: "two", 3: "three"}


def name_of(count):
    """Return the count in words, or in digits if it is large."""
    return WORDS.get(count, str(count))


def total(count):
    """Return what so many pieces cost; ten and more are cheaper."""
    if count < 10:
        return count * PRICE
    return count * PRICE * 0.9


print("price", PRICE)
print(name_of(2), "pieces:", total(2))
'''
MENDED = SHOP.replace("PRICE = 7", "PRICE = 8").replace("count < 10", "count <= 10")
PRINTED = "price 8\ntwo pieces: 16\n"
OLD, NEW = (text.partition("\n\n")[2].partition("\n\n\nprint")[0] for text in (SHOP, MENDED))
"""What the agents' edits replace, and what they put there."""
PATCH = "\n".join(
    (
        "*** Begin Patch\n*** Update File: shop.py\n@@",
        *(line for line in difflib.ndiff(SHOP.splitlines(), MENDED.splitlines()) if line[0] != "?"),
        "*** End Patch",
    )
)
PATCH = re.sub(r"^([-+ ]) ", r"\1", PATCH, flags=re.MULTILINE)
RUN = "python3 shop.py > out.txt"

CALLS: Mapping[str, tuple[Call, Call]] = {
    "codex": (
        ("exec_command", {"cmd": f"apply_patch <<'EOF'\n{PATCH}\nEOF\n"}),
        ("exec_command", {"cmd": RUN}),
    ),
    "opencode": (
        ("edit", {"filePath": "FILE", "oldString": OLD, "newString": NEW}),
        ("bash", {"command": RUN}),
    ),
    "claude": (
        ("Edit", {"file_path": "FILE", "old_string": OLD, "new_string": NEW}),
        ("Bash", {"command": RUN, "description": "Run the file"}),
    ),
    "qwen": (
        ("edit", {"file_path": "FILE", "old_string": OLD, "new_string": NEW}),
        ("run_shell_command", {"command": RUN, "is_background": False}),
    ),
    "cline": (
        ("editor", {"path": "FILE", "old_text": OLD, "new_text": NEW}),
        ("run_commands", {"commands": [RUN]}),
    ),
    "continue": (
        ("Edit", {"file_path": "FILE", "old_string": OLD, "new_string": NEW}),
        ("Bash", {"command": RUN}),
    ),
}
"""The calls that edit the file, FILE, and run it."""
TESTED_BY_AIDER = ("--auto-test", "--test-cmd", RUN)


def write_tags(name: str, arguments: Mapping[str, Any]) -> str:
    """Write a call as templates of Qwen 3.5 do."""
    texts = {key: one if isinstance(one, str) else json.dumps(one) for key, one in arguments.items()}
    values = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
    return f"<function={name}>\n{values}</function>"


@dataclass(frozen=True)
class Template:
    """A chat template.

    tools: how it introduces them. begins: how it begins an answer. gap: between content and a call.
    write: writes a call.
    """

    name: str
    tools: str = "You can call these tools:"
    begins: str = ANSWER_BEGINS
    gap: str = ""
    write: Callable[[str, Mapping[str, Any]], str] = write_json

    @property
    def file(self) -> str | None:
        """Its file; None for the bundled model's own."""
        return None if self is BUNDLED else str(TEMPLATES / f"{self.name}.jinja")


BUNDLED = Template("bundled")
QWEN35 = Template("qwen35", "You have these functions:", gap="\n\n", write=write_tags)
GEMMA3 = Template("gemma3", "These are the tools", MODEL_BEGINS, gap="\n")
"""It knows no tools: they are in the generic format."""


def script_of(agent: Agent, template: Template, file: Path) -> Script:
    """Return the script that calls the agent's tools one after the other, then says that all is done.

    A prompt without tools asks for a title.
    """
    if agent is AIDER:
        return answer_aider
    texts = json.dumps([agent.reads(file), *CALLS[agent.name]])
    calls = json.loads(texts.replace("FILE", str(file)))

    def answer(prompt: str) -> str:
        if template.tools not in prompt:
            return "Price"
        turns = prompt.split(template.begins)[1:-1]
        num_called = sum("<tool_call>" in turn.partition("<|im_end|>")[0] for turn in turns)
        if num_called == len(calls):
            return DONE
        return f"I do it.{template.gap}<tool_call>\n{template.write(*calls[num_called])}\n</tool_call>"

    return answer


def answer_aider(prompt: str) -> str:
    """Answer with the whole file, or with a commit message if that is what the prompt asks for."""
    return f"{DONE}\n\nshop.py\n```\n{MENDED}```\n" if SHOP in prompt else "fix: set the price"


@pytest.mark.parametrize("template", [BUNDLED, QWEN35, GEMMA3], ids=lambda t: t.name)
@pytest.mark.parametrize(
    "agent", [QWEN, CLAUDE, CODEX, OPENCODE, CLINE, CONTINUE, AIDER], ids=lambda a: a.name
)
# Packages of 55 to 700 MB.
@pytest.mark.slow
@pytest.mark.timeout(INSTALLED_WITHIN_S + 2 * DONE_WITHIN_S)
def test_an_agent_reads_edits_and_runs_a_file(
    agent: Agent, template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = make_project(tmp_path, {"shop.py": SHOP})
    settings = recording(tmp_path, chat_template=template.file)
    with serving_script(script_of(agent, template, project / "shop.py"), settings) as url:
        run = connected(agent, url, project, monkeypatch)
        program, *arguments = agent.program
        done = run([program, *(TESTED_BY_AIDER if agent is AIDER else ()), *arguments, TASK])
        assert done.returncode == 0, done.stderr
        assert DONE in done.stdout
        statuses = count_statuses(url)
    assert (project / "shop.py").read_text() == MENDED
    assert (project / "out.txt").read_text() == PRINTED
    assert set(statuses) == {"200"}
    turns = [json.loads(line) for line in (tmp_path / "turns").read_text().splitlines()]
    show(agent, template, turns)
    for turn, num_shared in zip(turns, count_shared(make_tokenizer(), turns), strict=True):
        assert turn["cached_tokens"] >= num_shared - 1
    assert sum(turn["forwards"] for turn in turns) < sum(turn["completion_tokens"] for turn in turns)


def show(agent: Agent, template: Template, turns: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows of the table in docs/agents.md. Requests without tools, for titles, are left out."""
    for turn in (turn for turn in turns if template.tools in turn["prompt"] or agent is AIDER):
        counts = [turn[f"{name}_tokens"] for name in ("prompt", "cached", "completion")]
        per_forward = turn["completion_tokens"] / turn["forwards"]
        print(f"| {agent.name}, {template.name} | {' | '.join(map(str, counts))} | {per_forward:.1f} |")
