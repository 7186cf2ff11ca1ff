"""The wheel, installed into a fresh environment, serves the bundled model that it holds."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import httpx
import pytest

from reprise.config.version import DISTRIBUTION, VERSION
from tests.end_to_end.conftest import started

ROOT = Path(__file__).parents[3]
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_{}(sys.argv[1]))"
FOLDERS = ("bench", "cli", "config", "demo_model", "drafters", "engine", "server")
HOSTILE = 'raise SystemExit("a module of the folder where one works was imported")\n'

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheel")


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    """Return the wheel of an sdist, which was made of sources whose packages are links, as in a checkout."""
    sources, dist = folder / "sources", folder / "dist"
    sources.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, sources)
    for name in (*FOLDERS, "examples", "reprise"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, sources / name, ignore=ignored, symlinks=True)
    run(sys.executable, "-c", BUILD.format("sdist"), str(dist), cwd=sources)
    shutil.rmtree(sources)
    (sdist,) = dist.iterdir()
    run("tar", "-xf", str(sdist), cwd=folder)
    unpacked = folder / sdist.name.removesuffix(".tar.gz")
    run(sys.executable, "-c", BUILD.format("wheel"), str(dist), cwd=unpacked)
    shutil.rmtree(unpacked)
    (wheel,) = dist.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def reprise(folder: Path, wheel: Path) -> Path:
    """Return the command of the wheel, in an environment that has the dependencies of this one."""
    home = folder / "environment"
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", str(wheel), cwd=folder)
    # Paths that come from such a file are searched, but the .pth of this checkout among them is not read.
    installed = next(home.glob("lib/python*/site-packages"))
    (installed / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return home / "bin" / "reprise"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a folder that has modules with the names of ours."""
    for name in FOLDERS:
        (tmp_path / f"{name}.py").write_text(HOSTILE)
    return tmp_path


def test_the_wheel_has_one_package_and_all_of_its_files(wheel: Path) -> None:
    assert wheel.name == f"{DISTRIBUTION.replace('-', '_')}-{VERSION}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"reprise", f"{wheel.name.split('-py3')[0]}.dist-info"}
    modules = {str(path.relative_to(ROOT)) for name in FOLDERS for path in (ROOT / name).glob("**/*.py")}
    modules -= {path for path in modules if path.startswith("demo_model/training/")}
    assert modules <= {name.removeprefix("reprise/") for name in names}
    assert "reprise/py.typed" in names


def test_the_command_of_the_wheel_knows_its_version(reprise: Path, tmp_path: Path) -> None:
    assert run(str(reprise), "--version", cwd=tmp_path).startswith(f"reprise {VERSION}, mlx ")


@pytest.mark.parametrize("command", [("reprise",), ("python", "-m", "reprise")])
def test_it_serves_its_own_model_beside_modules_of_the_same_names(
    reprise: Path,
    server_folder: Path,
    hostile: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    before = sorted(hostile.iterdir())
    program, *arguments = command
    whole = (str(reprise.with_name(program)), *arguments)
    with started(server_folder, command=whole, cwd=hostile) as (address, printed, process):
        request = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 20}
        answer = httpx.post(f"{address}/v1/chat/completions", json=request, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"]
        process.terminate()
        assert process.wait(240) == 0, "".join(printed)
    assert sorted(hostile.iterdir()) == before


def test_a_program_beside_modules_of_the_same_names_asks_its_own_model(reprise: Path, hostile: Path) -> None:
    ask = (
        "from reprise import LLM; llm = LLM(); "
        "print(llm.chat([{'role': 'user', 'content': 'Who are you?'}], max_tokens=5, temperature=0).text)"
    )
    assert run(str(reprise.with_name("python")), "-c", ask, cwd=hostile).startswith("I am the")


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
