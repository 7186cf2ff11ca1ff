"""`reprise serve` before anything is loaded: which model is meant, and what is wrong with a folder."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reprise.cli.find_model import with_found
from reprise.cli.launch import say_starting
from reprise.cli.main import main
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings
from reprise.engine.pool.catalogue import choose_first

GGUF = "{models}/files/a.gguf"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder of models: part/one, two, and Broken, which lacks its weights."""
    for name in ("part/one", "two", "Broken"):
        (tmp_path / name).mkdir(parents=True)
        for file in BUNDLED_MODEL.iterdir():
            if file.is_file():
                (tmp_path / name / file.name).symlink_to(file)
    (tmp_path / "Broken" / "model.safetensors").unlink()
    return tmp_path


def test_the_first_model_in_the_folder_that_can_be_loaded_is_the_default(models):
    chosen = choose_first(Settings(models_dir=str(models)))
    assert chosen.model == str(models / "part/one")
    assert chosen.model_name == "part/one"


def test_without_any_model_in_the_folder_the_bundled_one_stays(models):
    shutil.rmtree(models / "part")
    shutil.rmtree(models / "two")
    assert choose_first(Settings(models_dir=str(models))).model is None


@pytest.mark.parametrize(("named", "found"), [("two", "two"), ("part/one", "part/one"), ("three", None)])
def test_a_model_in_the_folder_can_be_named_by_its_name(models, named, found):
    settings = with_found(Settings(models_dir=str(models), model=named))
    assert settings.model == (str(models / found) if found else named)
    assert settings.model_name == named


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--models-dir", "{models}/none"], "--models-dir {models}/none: there is no such folder"),
        (
            ["--models-dir", "{models}/two"],
            "--models-dir {models}/two is a model itself: serve it with --model {models}/two",
        ),
        (
            ["--models-dir", "{models}/files"],
            "--models-dir {models}/files holds GGUF files: serve one of them with --model " + GGUF,
        ),
    ],
)
def test_a_folder_that_is_none_of_models_is_refused_with_what_was_meant(models, given, message, capsys):
    (models / "files").mkdir()
    (models / "files" / "a.gguf").touch()
    assert main(["serve", *(part.replace("{models}", str(models)) for part in given)]) == 2
    assert capsys.readouterr().err == f"reprise: {message.replace('{models}', str(models))}\n"


def faulty(models: Path, name: str) -> Path:
    folder = models / "two"
    if name == "of models":
        return models
    if name == "with a GGUF file":
        (models / "gguf").mkdir()
        (models / "gguf" / "a.gguf").touch()
        return models / "gguf"
    file = folder / {"cut": "model.safetensors", "tokenizer": "tokenizer.json"}.get(name, "config.json")
    text = file.read_bytes()
    file.unlink()
    changed = {"cut": text[:100_000], "config": b"{", "architecture": text.replace(b'"llama"', b'"lama"')}
    if name in changed:
        file.write_bytes(changed[name])
    return folder


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("of models", "it holds models: serve one, as with --model"),
        ("with a GGUF file", "the GGUF file in it can be served: --model"),
        ("no config", "it has no config.json"),
        ("cut", "is truncated"),
        ("config", "cannot read"),
        ("architecture", "does not know the architecture lama"),
        ("tokenizer", "no tokenizer"),
    ],
)
def test_serve_says_of_a_broken_folder_what_info_says(models, name, said, capsys):
    folder = faulty(models, name)
    main(["info", str(folder), "--json"])
    told = "".join(capsys.readouterr())
    assert said in told
    assert main(["serve", "--port", "0", str(folder)]) == 1
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in line
    assert line.removeprefix(f"reprise: the model {folder} cannot be served: ") in told


def test_the_terminal_says_starting_before_anything_large_is_imported():
    code = """
import sys, io
class Terminal(io.StringIO):
    def isatty(self): return True
    def write(self, text):
        if "starting" in text:
            large = {"mlx", "mlx_lm", "fastapi", "rich", "engine", "server"}
            print(text.strip(), sorted(large & set(sys.modules)))
            sys.exit(0)
sys.stderr = Terminal()
from reprise.cli.main import main
main(["serve", "--port", "0"])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "reprise: starting reprise-demo ... []\n"


def test_nothing_is_said_where_standard_error_is_closed(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    say_starting("reprise-demo")
