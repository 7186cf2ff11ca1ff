"""The workflows are YAML that calls scripts, commands and flags which exist."""

import re
from pathlib import Path

import pytest
import yaml

from tests.docs.test_pages import FLAG, command_flags

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCRIPTS = sorted(path for path in (ROOT / ".ci").iterdir() if path.is_file())
OTHER_FLAGS = {"--fail", "--from", "--homepage", "--quiet", "--silent", "--version"}
"""Flags of uv, curl, the formula's script, and `reprise` itself."""


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_every_job_has_a_limit_and_calls_what_exists(workflow):
    described = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    assert described["permissions"] == {"contents": "read"}
    for job in described["jobs"].values():
        assert job["timeout-minutes"] <= 120
        text = "\n".join(step.get("run", "") for step in job["steps"])
        for script in re.findall(r"(?<![\w/.])(?:\.ci|scripts)/[\w.]+", text):
            assert (ROOT / script).is_file(), script
        assert set(re.findall(FLAG, text)) - OTHER_FLAGS <= command_flags()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_what_the_workflows_call_can_be_run(script):
    assert script.stat().st_mode & 0o111
    text = re.sub(r"^#.*", "", script.read_text(encoding="utf-8"), flags=re.MULTILINE)
    commands = [line for line in text.splitlines() if re.search(r"\breprise\b", line)]
    assert set(re.findall(FLAG, "\n".join(commands))) - OTHER_FLAGS <= command_flags()
