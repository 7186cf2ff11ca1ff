"""A folder says what is wrong with it before anything is loaded."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.architectures.tiny_models import write_random_model
from config.model_settings import BUNDLED_MODEL
from engine.model.files.model_folder import INDEX, describe_folder


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def rename(old: str, new: str) -> Callable[[Path], None]:
    return lambda folder: (folder / old).rename(folder / new) and None


def drop_tokenizer(folder: Path) -> None:
    for file in folder.glob("*token*"):
        file.unlink()


FAULTS = {
    "no config.json": drop("config.json"),
    "config.json cannot be read": write("config.json", "{"),
    "config.json cannot be read: it is no object": write("config.json", "[]"),
    "no model*.safetensors": drop("model.safetensors"),
    "no model*.safetensors, but .gguf files, which mlx-lm does not load": rename(
        "model.safetensors", "model-Q4_K_M.gguf"
    ),
    "file 1 of 2 of the weights is missing": rename("model.safetensors", "model-00002-of-00002.safetensors"),
    "model-2.safetensors is missing, which the index names": write(
        INDEX, json.dumps({"weight_map": {"one": "model.safetensors", "two": "model-2.safetensors"}})
    ),
    f"{INDEX} cannot be read": write(INDEX, '{"weight_map": []}'),
    "no tokenizer": drop_tokenizer,
    "does not know the architecture telepathy": write("config.json", '{"model_type": "telepathy"}'),
    "does not know the architecture cache": write("config.json", '{"model_type": "cache"}'),
    "does not know the architecture None": write("config.json", '{"hidden_size": 1}'),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model("llama", tmp_path_factory.mktemp("folder") / "model")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(whole: Path, tmp_path: Path, fault: str) -> None:
    folder = shutil.copytree(whole, tmp_path / "model")
    assert describe_folder(folder).fault is None
    FAULTS[fault](folder)
    assert fault in (describe_folder(folder).fault or "")


def test_a_whole_folder_is_described_by_its_own_name_and_size() -> None:
    found = describe_folder(BUNDLED_MODEL / "draft")
    assert (found.name, found.fault) == ("draft", None)
    assert (
        found.weight_bytes == (BUNDLED_MODEL / "draft" / "model.safetensors").stat().st_size < found.num_bytes
    )
    config = json.loads((BUNDLED_MODEL / "draft" / "config.json").read_text())
    assert found.context_tokens == config["max_position_embeddings"]


def test_a_folder_that_is_not_there_is_a_fault() -> None:
    found = describe_folder(Path("/no/such/folder"))
    assert (found.num_bytes, found.fault) == (0, "no model*.safetensors")
