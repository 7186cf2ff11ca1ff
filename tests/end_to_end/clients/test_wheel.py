"""The wheel, installed into a fresh environment, serves the bundled model that it holds."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import httpx
import pytest

from reprise.config.version import DISTRIBUTION, VERSION
from tests.end_to_end.conftest import started

ROOT = Path(__file__).parents[3]
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reprise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the command of the wheel, in an environment that has the dependencies of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    sources, dist, home = folder / "sources", folder / "dist", folder / "environment"
    # Copies what the links in it point to.
    shutil.copytree(ROOT / "reprise", sources / "reprise", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", sources)
    dist.mkdir()
    run(sys.executable, "-c", BUILD, str(dist), cwd=sources)
    (wheel,) = dist.iterdir()
    assert wheel.name == f"{DISTRIBUTION.replace('-', '_')}-{VERSION}-py3-none-any.whl"
    shutil.rmtree(sources)
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", str(wheel), cwd=folder)
    # Paths that come from such a file are searched, but the .pth of this checkout among them is not read.
    installed = next(home.glob("lib/python*/site-packages"))
    (installed / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return home / "bin" / "reprise"


def test_the_command_of_the_wheel_knows_its_version(reprise: Path, tmp_path: Path) -> None:
    assert run(str(reprise), "--version", cwd=tmp_path).startswith(f"reprise {VERSION}, mlx ")


def test_it_serves_its_own_model_from_an_empty_folder(
    reprise: Path, server_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with started(server_folder, command=(str(reprise),), cwd=tmp_path) as (address, printed, process):
        request = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 20}
        answer = httpx.post(f"{address}/v1/chat/completions", json=request, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"]
        process.terminate()
        assert process.wait(240) == 0, "".join(printed)
    assert list(tmp_path.iterdir()) == []


def test_nothing_of_it_comes_from_a_checkout(reprise: Path, tmp_path: Path) -> None:
    show = "import reprise.config.model_settings; print(reprise.config.model_settings.BUNDLED_MODEL)"
    shown = Path(run(str(reprise.with_name("python")), "-c", show, cwd=tmp_path).strip())
    assert reprise.parents[1] in shown.parents
    for part in ("config.json", "draft/model.safetensors", "wedlm/chat_template.jinja"):
        assert (shown / part).is_file()
    assert not (shown / "training").exists()


def run(*command: str, cwd: Path) -> str:
    """Run a command without this checkout on its path, and return what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
