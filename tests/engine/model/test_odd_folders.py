"""A folder may hold anything: it is read within limits, and what breaks them is that folder's fault alone."""

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from reprise.config.settings import Settings
from reprise.engine.checkpoint import check_folder, inspect_checkpoint
from reprise.engine.engine import Engine
from reprise.engine.interface.errors import ModelError, ModelLoadError
from reprise.engine.model.files.folder_reader import MAX_DEPTH, MAX_JSON_BYTES, parse_json, read_bytes
from reprise.engine.model.files.model_folder import INDEX, MAX_FAULT_CHARACTERS, MAX_MISSING, describe_folder
from reprise.engine.model.hub import HubCache
from reprise.engine.pool.catalogue import Catalogue, choose_first
from reprise.server.app import create_app
from tests.end_to_end.seeing_folder import write_seeing
from tests.engine.model_folders import answer_of, write_adapter, write_model
from tests.engine.pool.test_pool import ask
from tests.engine.support import prompt_of, request
from tests.server.served import served
from tests.tiny_models import write_random_model

Change = Callable[[Path], object]
DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000


def put(name: str, text: str) -> Change:
    return lambda folder: (folder / name).write_text(text)


def put_pipe(name: str) -> Change:
    def put(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).parent.mkdir(exist_ok=True)
        os.mkfifo(folder / name)

    return put


def put_hole(name: str, num_bytes: int) -> Change:
    def put(folder: Path) -> None:
        (folder / name).touch()
        os.truncate(folder / name, num_bytes)

    return put


def configure(**changes: Any) -> Change:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))

    return change


def put_header(folder: Path) -> None:
    header = DEEP.encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


ODD: dict[str, tuple[Change, str]] = {
    "one of 40 million files": (put("model-00001-of-40000000.safetensors", ""), "file 2 of 40000000"),
    "a deep config": (put("config.json", DEEP), "config.json has JSON nested 100,000 deep"),
    "a deep index": (put(INDEX, DEEP), f"{INDEX} has JSON nested 100,000 deep"),
    "deep modules": (put("modules.json", DEEP), "modules.json has JSON nested 100,000 deep"),
    "a deep header": (put_header, "model.safetensors has JSON nested 100,000 deep"),
    "two million layers": (
        configure(num_hidden_layers=2_000_000),
        "num_hidden_layers 2000000; with these weights",
    ),
    "more layers than arrays": (
        configure(num_hidden_layers=58),
        "58; with these weights it can be 57 at most",
    ),
    "a million experts": (configure(text={"n_routed_experts": 10**6}), "n_routed_experts 1000000"),
    "a pipe": (put_pipe("generation_config.json"), "generation_config.json is no regular file"),
    "a pipe for a tokenizer": (put_pipe("tokenizer_config.json"), "tokenizer_config.json is no regular file"),
    "a pipe of weights": (put_pipe("model.safetensors"), "model.safetensors is no regular file"),
    "a pipe below": (put_pipe("mtp/weights.safetensors"), "weights.safetensors is no regular file"),
    "a device": (lambda folder: (folder / "merges.txt").symlink_to("/dev/zero"), "merges.txt is no regular"),
    "a huge config": (put_hole("config.json", MAX_JSON_BYTES + 1), "config.json has more than 16,777,216"),
    "a huge tokenizer": (put_hole("tokenizer.json", 2**40), "tokenizer.json has more than 134,217,728 bytes"),
    "an endless context": (configure(max_position_embeddings=float("inf")), "config.json cannot be read"),
    "half a character": (put("config.json", r'{"model_type": "\ud800"}'), "half a surrogate pair"),
    "a long architecture": (configure(model_type="x" * 10**6), "does not know the architecture xxx"),
}
SEEING: dict[str, tuple[Change, str]] = {
    "a deep processor": (put("preprocessor_config.json", DEEP), "JSON nested 100,000 deep"),
    "a deep second processor": (put("processor_config.json", DEEP), "JSON nested 100,000 deep"),
    "20,000 tiles": (
        put("preprocessor_config.json", '{"max_tiles": 20000}'),
        "its images have max_tiles 20000; at most 64 are known here",
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model("llama", tmp_path_factory.mktemp("folder") / "model")


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_folder_has_a_fault(whole: Path, tmp_path: Path, odd: str) -> None:
    change, fault = ODD[odd]
    folder = shutil.copytree(whole, tmp_path / "model")
    change(folder)
    found = describe_folder(folder)
    assert fault in (found.fault or "")
    assert len(found.fault or "") <= MAX_FAULT_CHARACTERS


@pytest.mark.parametrize("odd", SEEING)
def test_an_odd_processor_is_a_fault(tmp_path: Path, odd: str) -> None:
    change, fault = SEEING[odd]
    folder = write_seeing(tmp_path / "seeing", "lfm2_vl")
    assert describe_folder(folder).fault is None
    change(folder)
    assert fault in (describe_folder(folder).fault or "")


def test_a_folder_is_inspected_without_building_what_its_weights_cannot_hold(
    whole: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(whole, tmp_path / "model")
    configure(num_hidden_layers=2_000_000)(folder)
    (refused,) = inspect_checkpoint(str(folder)).refused
    assert "num_hidden_layers 2000000" in refused
    with pytest.raises(ModelError, match=r"cannot be served: .* num_hidden_layers 2000000; with"):
        check_folder(folder)


def test_missing_files_are_named_as_far_as_a_person_reads(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "model")
    (folder / "model-00001-of-40000000.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    refused = [one for one in inspect_checkpoint(str(folder)).refused if "of the weights is missing" in one]
    assert len(refused) == MAX_MISSING
    assert refused[-1].startswith("file 101 of 40000000")


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1])
def test_brackets_in_texts_do_not_count(depth: int) -> None:
    text = json.dumps({"a\\": '"[' * 1000}).encode()
    nested = b"[" * (depth - 1) + text + b"]" * (depth - 1)
    if depth > MAX_DEPTH:
        with pytest.raises(ModelError, match="nested 65 deep; at most 64"):
            parse_json(nested, Path("a.json"))
    else:
        assert parse_json(nested, Path("a.json")) == json.loads(nested)


def test_a_folder_in_place_of_a_file_is_no_regular_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is no regular file"):
        read_bytes(tmp_path)


@pytest.fixture
def pool(tmp_path: Path, whole: Path) -> Iterator[Engine]:
    """A pool on a folder with a good model, an adapter that is odd, and all odd folders."""
    models = tmp_path / "models"
    write_model(models / "good", "llama", 1)
    write_adapter(models / "adapter", models / "good")
    (models / "adapter" / "adapter_config.json").write_text(DEEP)
    for name, (change, _) in ODD.items():
        change(shutil.copytree(whole, models / f"{name}, odd"))
    seeing = write_seeing(tmp_path / "seeing", "lfm2_vl")
    for name, (change, _) in SEEING.items():
        change(shutil.copytree(seeing, models / f"{name}, odd"))
    shutil.copytree(whole, models / os.fsdecode(b"\xff, odd"))
    put_pipe("config.json")(models / "pipe, odd")
    settings = choose_first(Settings(models_dir=str(models), allow_load=True))
    pool = Engine(settings, catalogue=Catalogue(settings, HubCache(tmp_path / "hub")))
    pool.start()
    yield pool
    pool.stop(drain_s=0)


def test_odd_folders_take_nothing_from_others(pool: Engine, tmp_path: Path) -> None:
    entries = {entry.name: entry for entry in pool.entries()}
    assert entries.keys() == {"good"} | {f"{name}, odd" for name in (*ODD, *SEEING)}
    with served(create_app(pool, pool.settings)) as url:
        listed = httpx.get(f"{url}/v1/models", timeout=60).json()["data"]
        tagged = httpx.get(f"{url}/api/tags", timeout=60).json()["models"]
    assert {one["id"] for one in listed} == entries.keys()
    assert "good:latest" in {one["name"] for one in tagged}
    for name in entries.keys() - {"good"}:
        with pytest.raises(ModelLoadError) as raised:
            pool.acquire(name).result(60)
        assert raised.value.kind == "not_loadable"
    asked = request(prompt_of(20))
    assert list(ask(pool, "good", asked).finished().tokens) == answer_of(tmp_path / "models" / "good", asked)
