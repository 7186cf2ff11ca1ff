"""`reprise pull`, `list` and `rm` against a hub on this machine."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from reprise.cli.main import main
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings
from reprise.engine.speculative.heads.loading import find_given_head
from tests.engine.embedding.encoder_folders import write_encoder, write_modules
from tests.engine.model.fake_hub import MODEL, FakeHub, serve, use
from tests.tiny_models import write_random_model


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    folder = write_random_model("llama", tmp_path / "model")
    monkeypatch.setenv("COLUMNS", "300")
    with serve({file.name: file.read_bytes() for file in folder.iterdir()}, {"model.safetensors"}) as hub:
        use(hub, tmp_path / "cache", monkeypatch)
        # What was converted before is listed too.
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "converted"))
        yield hub


@pytest.mark.usefixtures("hub")
def test_a_model_is_pulled_listed_described_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "there are no models" in capsys.readouterr().out
    assert main(["pull", MODEL]) == 0
    said = capsys.readouterr()
    assert Path(said.out.strip(), "config.json").is_file()
    assert f"reprise serve {MODEL}" in said.err
    assert main(["list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["name"], listed["path"], listed["fault"]) == (MODEL, said.out.strip(), None)
    assert main(["list"]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split() == ["model", "size", "context", "for", "cannot", "be", "served"]
    assert line.split()[0] == MODEL
    assert main(["info", MODEL, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["context_tokens"] == listed["context_tokens"]
    assert main(["rm", MODEL]) == 0
    assert MODEL in capsys.readouterr().out
    assert main(["rm", MODEL]) == 1
    assert "there is no model" in capsys.readouterr().err


def test_a_drafter_is_pulled_named_and_found_again_without_the_hub(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.files = {file.name: file.read_bytes() for file in (BUNDLED_MODEL / "dflash").iterdir()}
    assert main(["pull", MODEL]) == 0
    said = capsys.readouterr()
    assert f"{MODEL} holds a drafter (DFlash drafter)" in said.err
    assert f"reprise serve MODEL --draft-model {MODEL}" in said.err
    hub.files.clear()
    found = find_given_head(Settings(draft_model=MODEL))
    assert found is not None
    assert (found.name, found.source) == ("DFlash drafter", said.out.strip())
    assert main(["serve", "--model", said.out.strip(), "--port", "0"]) == 1
    assert "name it with --draft-model" in capsys.readouterr().err
    assert main(["doctor", "--model", said.out.strip(), "--ngram-table-file", str(tmp_path / "ngrams")]) == 1
    assert "DFlash drafter, 1.6 MiB of weights" in capsys.readouterr().out


def test_a_drafter_with_a_tokenizer_is_not_taken_for_a_model(
    hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.files = {file.name: file.read_bytes() for file in (BUNDLED_MODEL / "dflash").iterdir()}
    hub.files |= {file.name: file.read_bytes() for file in BUNDLED_MODEL.glob("tokenizer*")}
    assert main(["pull", MODEL]) == 0
    assert main(["list"]) == 0
    assert "a drafter, which --draft-model takes" in capsys.readouterr().out
    assert main(["serve", "--model", MODEL, "--port", "0"]) == 1
    assert "holds a DFlash drafter, which cannot answer by itself: name it" in capsys.readouterr().err


def test_an_embedding_model_says_what_its_vectors_are(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_encoder(tmp_path / "encoder")
    write_modules(folder, {"pooling_mode": "mean"}, "Dense", "Normalize")
    prompts = {"prompts": {"query": "query: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    files = (file for file in folder.rglob("*") if file.is_file())
    hub.files = {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
    assert main(["pull", MODEL]) == 0
    assert main(["list"]) == 0
    vectors = "12 dimensions, pooling mean; prompts: query"
    assert f"embeddings: {vectors}" in capsys.readouterr().out.splitlines()[-1]
    assert main(["info", MODEL]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert {"kind embedding model (bert)", f"vectors {vectors}"} <= {*lines}


def test_an_error_is_one_line_and_a_status(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "no-org/model"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert [line for line in said.err.splitlines() if "reprise:" in line] == [
        f"reprise: there is no model no-org/model on {hub.endpoint}, or it is private and wants HF_TOKEN"
    ]


def test_a_model_that_cannot_be_served_is_no_success(
    hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads(hub.files["config.json"]) | {"model_type": "telepathy"}
    hub.files["config.json"] = json.dumps(config).encode()
    assert main(["pull", MODEL]) == 1
    assert "does not know the architecture telepathy" in capsys.readouterr().err
