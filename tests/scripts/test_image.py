"""The image holds the server and its model alone, and its commands work in a clean folder, without docker."""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from reprise.cli.main import main
from reprise.config.settings import SETTINGS
from tests.end_to_end.conftest import started

ROOT = Path(__file__).parents[2]
IGNORED = (ROOT / ".dockerignore").read_text().split()


class Instruction(NamedTuple):
    """A line of a Dockerfile: its first word, and the rest."""

    word: str
    text: str


def instructions(dockerfile: str) -> list[Instruction]:
    text = re.sub(r"^#.*\n", "", (ROOT / dockerfile).read_text(), flags=re.MULTILINE).replace("\\\n", "")
    return [Instruction(*line.split(maxsplit=1)) for line in text.splitlines() if line]


IMAGE = instructions("Dockerfile")
BUILD = IMAGE[: [one.word for one in IMAGE].index("FROM", 1)]
SERVED = IMAGE[len(BUILD) :]


def the(word: str) -> str:
    """Return the text of the last stage's only instruction of this name."""
    (text,) = [one.text for one in SERVED if one.word == word]
    return text


def copied(stage: list[Instruction]) -> list[str]:
    """Return what a stage copies out of the checkout."""
    texts = [one.text.split() for one in stage if one.word == "COPY" and not one.text.startswith("--from")]
    return [source for *sources, _ in texts for source in sources]


@pytest.mark.parametrize("dockerfile", ["Dockerfile", "Dockerfile.dev"])
def test_every_path_that_is_copied_exists_and_is_not_ignored(dockerfile: str) -> None:
    sources = copied(instructions(dockerfile))
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert not any(fnmatch.fnmatch(source, pattern) for pattern in IGNORED), source


def test_the_image_gets_the_package_and_no_tests() -> None:
    packages = {path.name for path in (ROOT / "reprise").iterdir() if path.is_symlink()}
    folders = {source for source in copied(BUILD) if (ROOT / source).is_dir()}
    assert folders == packages | {"reprise"}
    assert copied(SERVED) == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*project["license-files"]} <= {*copied(BUILD), "server/page/vendor/LICENSES.txt"}


def test_what_git_ignores_of_large_things_docker_ignores_too() -> None:
    git = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line.strip("/")}
    ignored = {pattern.removeprefix("**/") for pattern in IGNORED}
    left = {line for line in git if not line.startswith(("#", "tests/"))} - ignored
    assert left == {".coverage"}
    assert {".git", "node_modules"} <= ignored


def test_it_is_nobody_s_root_and_what_it_keeps_is_in_two_volumes() -> None:
    assert the("USER") == "reprise"
    assert json.loads(the("VOLUME")) == ["/models", "/cache"]
    environment = dict(pair.split("=", 1) for pair in the("ENV").split())
    assert (environment["HF_HOME"], environment["XDG_CACHE_HOME"]) == ("/models", "/cache")
    variables = {known.variable for known in SETTINGS.values()}
    assert {name for name in environment if name.startswith("REPRISE_")} <= variables
    assert the("EXPOSE") == environment["REPRISE_PORT"]


def test_it_does_not_start_without_a_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for pair in the("ENV").split():
        name, value = pair.split("=", 1)
        if name.startswith("REPRISE_"):
            monkeypatch.setenv(name, value)
    assert json.loads(the("ENTRYPOINT")) == ["reprise"]
    assert main(json.loads(the("CMD"))) == 1
    assert "set one with --api-key, or allow it with --insecure" in capsys.readouterr().err


@pytest.mark.slow
def test_its_commands_make_a_server_in_a_clean_folder(tmp_path: Path) -> None:
    """Run what docker runs, with the image's folders below tmp_path; there is no compiler on its PATH."""
    build, home, tools = (tmp_path / name for name in ("build", "opt/reprise", "tools"))
    build.mkdir()
    venv.create(tools, with_pip=True)

    def here(text: str) -> str:
        return text.replace("/opt/reprise", str(home))

    for word, text in BUILD:
        if word == "COPY":
            *sources, place = text.split()
            for source in sources:
                if (ROOT / source).is_dir():
                    shutil.copytree(
                        ROOT / source,
                        build / place,
                        symlinks=True,
                        ignore=shutil.ignore_patterns("__pycache__"),
                    )
                else:
                    shutil.copy(ROOT / source, build / place)
        if word == "RUN":
            done = run("bash", "-e", "-c", here(text), cwd=build, path=f"{tools}/bin:/usr/bin:/bin")
            if done.returncode and re.search("Failed to fetch|Could not find a version", done.stderr):
                pytest.skip(f"the packages cannot be had: {done.stderr.strip()[-200:]}")
            assert done.returncode == 0, done.stderr
    shutil.rmtree(build)
    installed = {path.name.split("-")[0] for path in home.glob("lib/*/site-packages/*.dist-info")}
    assert "reprise_mlx" in installed
    assert not installed & {"pytest", "mypy", "ruff", "openai", "playwright"}

    own = tmp_path / "own"
    own.mkdir()
    environment = [here(pair).replace("$PATH", str(own)) for pair in the("ENV").split()]
    environment = [re.sub("=(/models|/cache)$", rf"={tmp_path}\1", pair) for pair in environment]
    python = str(home / "bin" / "python")
    command = ["env", "-i", f"HOME={own}", f"TMPDIR={own}", *environment, str(home / "bin" / "reprise")]
    with started(tmp_path, "--api-key", "key", command=command, cwd=own) as (address, printed, _):
        url = f"http://127.0.0.1:{address.rsplit(':', 1)[1]}"
        check = json.loads(the("HEALTHCHECK").split("CMD ", 1)[1])
        assert check[:2] == ["python", "-c"]
        subprocess.run([python, "-c", check[2].replace("http://127.0.0.1:8000", url)], check=True)
        body = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 20}
        ask = f"{url}/v1/chat/completions"
        assert httpx.post(ask, json=body, timeout=60).status_code == 401
        answer = httpx.post(ask, json=body, timeout=60, headers={"Authorization": "Bearer key"})
        assert answer.json()["choices"][0]["message"]["content"].startswith("I am the"), "".join(printed)
    # The root may be read-only but for the volumes.
    assert list(own.iterdir()) == []
    assert (tmp_path / "cache").is_dir()
    dead = [sys.executable, "-c", check[2].replace("http://127.0.0.1:8000", url)]
    assert subprocess.run(dead, capture_output=True, check=False).returncode


def run(*command: str, cwd: Path, path: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"HOME": str(cwd), "PATH": path}
    environment.pop("VIRTUAL_ENV", None)
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
