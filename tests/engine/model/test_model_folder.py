"""A folder says what is wrong with it before anything is loaded."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings
from reprise.engine.checkpoint import inspect_checkpoint
from reprise.engine.model.files.model_folder import INDEX, describe_folder
from reprise.engine.model.loading import make_loader
from tests.end_to_end.seeing_folder import TOKENS, write_seeing
from tests.tiny_models import write_random_model


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


@pytest.mark.parametrize("family", TOKENS)
def test_a_folder_says_how_its_model_sees_as_the_loaded_model_does(family: str, tmp_path: Path) -> None:
    folder = write_seeing(tmp_path / "seeing", family)
    found, loaded = describe_folder(folder).vision, make_loader(Settings(model=str(folder)))(None)
    assert found
    assert loaded.info.vision
    # Which tokens show an image is known with the tokenizer alone.
    assert replace(found, processor=None) == replace(loaded.info.vision, processor=None)


def test_a_pixtral_sees_under_the_name_that_it_was_published_by(tmp_path: Path) -> None:
    folder = write_seeing(tmp_path / "seeing", "mistral3")
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"]["model_type"] = "pixtral"
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "llava"}))
    found, loaded = describe_folder(folder).vision, make_loader(Settings(model=str(folder)))(None)
    assert found
    assert loaded.sight
    assert loaded.info.vision
    assert (found.family, loaded.info.vision.family) == ("pixtral", "pixtral")


def without_tower(folder: Path) -> None:
    file = folder / "model.safetensors"
    arrays: dict[str, mx.array] = mx.load(str(file))  # type: ignore[assignment]
    kept = {name: mx.array(array) for name, array in arrays.items() if "vision" not in name}
    mx.eval(kept)
    mx.save_safetensors(str(file), kept)


def without_processor(folder: Path) -> None:
    (folder / "preprocessor_config.json").unlink()


def with_an_unknown_tower(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    # It is cut as Qwen2.5-VL's, but looked at by another tower.
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "qwen2_vl"}))


@pytest.mark.parametrize("change", [without_tower, without_processor, with_an_unknown_tower])
def test_a_folder_that_lacks_what_it_would_see_with_sees_nothing(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    folder = write_seeing(tmp_path / "seeing", "qwen2_5_vl")
    change(folder)
    assert describe_folder(folder).vision is None
    assert inspect_checkpoint(str(folder)).images == ""


def test_the_names_in_an_index_say_whether_a_tower_is_there(tmp_path: Path) -> None:
    folder = write_seeing(tmp_path / "seeing", "qwen3_vl")
    index = {"weight_map": {"model.embed_tokens.weight": "model.safetensors"}}
    (folder / INDEX).write_text(json.dumps(index))
    assert describe_folder(folder).vision is None
    index["weight_map"]["model.visual.merger.norm.weight"] = "model.safetensors"
    (folder / INDEX).write_text(json.dumps(index))
    assert describe_folder(folder).vision is not None
