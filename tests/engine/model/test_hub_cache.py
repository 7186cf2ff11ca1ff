"""Models come from a hub on this machine into the cache, whole or not at all, and leave no trace."""

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from huggingface_hub import constants

from reprise.engine.interface.errors import ModelError
from reprise.engine.model import hub as hub_module
from reprise.engine.model.files.model_folder import describe_folder
from reprise.engine.model.hub import HubCache, HubError, find_downloaded, pull
from tests.engine.model.fake_hub import COMMIT, MODEL, FakeHub, serve
from tests.tiny_models import write_random_model

WEIGHTS = "model.safetensors"
PIECE_BYTES = 4096


@pytest.fixture(scope="module")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = write_random_model("llama", tmp_path_factory.mktemp("hub") / "model")
    files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.iterdir()}
    # Of no use to mlx-lm, so it is not downloaded.
    return files | {".gitattributes": b"*.safetensors filter=lfs", "original/weights.pth": b"0"}


@pytest.fixture
def hub(model_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", PIECE_BYTES)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serve(model_files, {WEIGHTS, "tokenizer.json"}) as hub:
        yield hub


@pytest.fixture
def cache(hub: FakeHub, tmp_path: Path) -> HubCache:
    return HubCache(tmp_path / "cache", hub.endpoint)


def test_a_pulled_model_is_whole_and_listed(hub: FakeHub, cache: HubCache) -> None:
    reports: list[tuple[int, int]] = []
    found = pull(MODEL, lambda done, total: reports.append((done, total)), cache)
    assert (found.name, found.fault) == (MODEL, None)
    assert found.path == cache.folder / "models--some-org--some-model" / "snapshots" / COMMIT
    needed = {name: data for name, data in hub.files.items() if "/" not in name and name[0] != "."}
    assert {file.name: file.read_bytes() for file in found.path.iterdir()} == needed
    assert found.weight_bytes == len(hub.files[WEIGHTS])
    assert found.context_tokens == describe_folder(found.path).context_tokens is not None
    assert cache.list_models() == [found]
    total = sum(map(len, needed.values()))
    assert reports[-1] == (total, total)
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    assert (hub.tokens, hub.tokens_elsewhere) == ({"Bearer hf_secret"}, set())


def test_a_downloaded_model_is_found_by_its_name(cache: HubCache, monkeypatch: pytest.MonkeyPatch) -> None:
    found = pull(MODEL, cache=cache)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache.folder))
    assert find_downloaded(MODEL) == found.path
    (found.path / WEIGHTS).unlink()
    with pytest.raises(ModelError, match="reprise pull"):
        find_downloaded(MODEL)


def test_a_snapshot_that_another_program_made_without_dense_layers_is_not_whole(
    hub: FakeHub, cache: HubCache
) -> None:
    hub.files["2_Dense/model.safetensors"] = b"dense"
    dense = pull(MODEL, cache=cache).path / "2_Dense" / "model.safetensors"
    assert dense.read_bytes() == b"dense"
    dense.unlink()
    assert cache.list_models()[0].fault is not None
    assert pull(MODEL, cache=cache).fault is None
    assert dense.is_file()


@pytest.mark.parametrize("head", ["mtp.safetensors", "mtp/weights.safetensors"])
def test_a_snapshot_that_another_program_made_without_a_head_is_whole(
    head: str, hub: FakeHub, cache: HubCache
) -> None:
    hub.files[head] = b"head"
    (pull(MODEL, cache=cache).path / head).unlink()
    assert cache.list_models()[0].fault is None


def test_what_is_there_is_not_downloaded_again(hub: FakeHub, cache: HubCache) -> None:
    first = pull(MODEL, cache=cache)
    hub.ranges.clear()
    assert pull(MODEL, cache=cache) == first
    assert hub.ranges == []


def test_a_pull_that_was_interrupted_continues_within_the_file(hub: FakeHub, cache: HubCache) -> None:
    hub.large = {WEIGHTS}

    def interrupt(done: int, _total: int) -> None:
        if done > 3 * PIECE_BYTES:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(MODEL, interrupt, cache)
    (half,) = cache.list_models()
    assert half.name == MODEL
    assert half.fault is not None
    assert "has not ended" in half.fault
    assert half.num_bytes == 4 * PIECE_BYTES
    assert pull(MODEL, cache=cache).fault is None
    assert hub.ranges == [(WEIGHTS, None), (WEIGHTS, f"bytes={4 * PIECE_BYTES}-")]


@pytest.mark.parametrize("begun", ["wrong", "too long", "sent again"])
def test_what_a_file_begins_with_is_never_believed(hub: FakeHub, cache: HubCache, begun: str) -> None:
    data = hub.files[WEIGHTS]
    held = {"wrong": b"wrong", "too long": b"0" * (len(data) + 1), "sent again": data[:PIECE_BYTES]}
    hub.ignores_ranges = begun == "sent again"
    blobs = cache.home(MODEL) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{hub.file_info(WEIGHTS)[0]}.incomplete").write_bytes(held[begun])
    if begun == "wrong":
        assert "damaged" in explain(cache, "failed")
    assert (pull(MODEL, cache=cache).path / WEIGHTS).read_bytes() == data


def test_one_at_a_time_downloads_or_removes_a_model(cache: HubCache) -> None:
    def again(_done: int, _total: int) -> None:
        with pytest.raises(HubError, match="already"):
            pull(MODEL, cache=cache)
        with pytest.raises(HubError, match="already"):
            cache.remove(MODEL)

    assert pull(MODEL, again, cache).fault is None


def test_a_hub_cannot_choose_where_files_go(hub: FakeHub, cache: HubCache) -> None:
    hub.names[WEIGHTS] = "../../../" + "0" * 55
    assert "SHA-256" in explain(cache, "failed")


def test_a_file_that_arrives_damaged_is_never_kept(hub: FakeHub, cache: HubCache) -> None:
    hub.damaged = {WEIGHTS}
    assert "damaged" in explain(cache, "failed")
    assert [model.fault is None for model in cache.list_models()] == [False]
    hub.damaged.clear()
    assert pull(MODEL, cache=cache).fault is None


def test_too_small_a_disk_is_seen_before_anything_is_written(
    hub: FakeHub, cache: HubCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = hub_module.RESERVED_BYTES + len(hub.files[WEIGHTS])
    usage = shutil.disk_usage(cache.folder.parent)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    assert "GB free" in explain(cache, "space")
    assert hub.ranges == []
    assert cache.list_models() == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="macOS has no /dev/full")
def test_a_disk_that_fills_up_leaves_no_half_model(hub: FakeHub, cache: HubCache) -> None:
    blobs = cache.home(MODEL) / "blobs"
    blobs.mkdir(parents=True)
    # Whatever is written to this device finds the disk full.
    (blobs / f"{hub.file_info(WEIGHTS)[0]}.incomplete").symlink_to("/dev/full")
    assert "is full" in explain(cache, "space")
    assert not list(blobs.glob("*.incomplete"))
    assert [model.fault is None for model in cache.list_models()] == [False]
    assert pull(MODEL, cache=cache).fault is None


@pytest.mark.parametrize("lost", [WEIGHTS, "config.json", "tokenizer.json"])
def test_a_model_that_lacks_a_file_is_not_called_whole(cache: HubCache, lost: str) -> None:
    (pull(MODEL, cache=cache).path / lost).unlink()
    (found,) = cache.list_models()
    assert found.fault
    # Also without the list of files, which other versions of huggingface_hub do not write.
    shutil.rmtree(cache.home(MODEL) / "trees")
    assert describe_folder(found.path).fault


def test_a_model_is_described_while_its_files_come_and_go(cache: HubCache) -> None:
    found, ended = pull(MODEL, cache=cache), threading.Event()
    begun = [folder / "0.incomplete" for folder in (found.path, cache.home(MODEL) / "blobs")]

    def come_and_go() -> None:
        while not ended.is_set():
            for path in begun:
                path.touch()
                path.rename(path.with_suffix("")).unlink()

    with ThreadPoolExecutor(1) as threads:
        coming = threads.submit(come_and_go)
        try:
            for _ in range(100):
                assert cache.list_models() == [found]
        finally:
            ended.set()
        coming.result()


def test_removing_leaves_nothing(cache: HubCache) -> None:
    found = pull(MODEL, cache=cache)
    assert cache.remove(MODEL) == found.num_bytes
    assert not [path for path in cache.folder.rglob("*some-model*") if path.exists()]
    assert cache.list_models() == []
    with pytest.raises(HubError, match="there is no model"):
        cache.remove(MODEL)


def test_what_a_broken_download_left_can_be_removed(cache: HubCache) -> None:
    blob = cache.home(MODEL) / "blobs" / "0.incomplete"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"1234")
    assert cache.remove(MODEL) == 4
    assert not cache.home(MODEL).exists()


def test_what_the_hub_refuses_is_said_in_one_line(
    hub: FakeHub, cache: HubCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "there is no model no-org/model" in explain(cache, "unknown", "no-org/model")
    assert "cannot be a model" in explain(cache, "name", "../../etc")
    hub.is_gated = True
    assert "is gated" in explain(cache, "gated")
    hub.files = {"model-Q4.gguf": b"0", "config.json": b"{}"}
    assert "GGUF" in explain(cache, "kind")
    assert "connection" in explain(HubCache(cache.folder, "http://127.0.0.1:9"), "offline")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in explain(cache, "offline")


def test_a_folder_that_cannot_be_written_is_named(hub: FakeHub, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    assert str(file) in explain(HubCache(file, hub.endpoint), "failed")
    assert os.strerror(errno.ENOTDIR) in explain(HubCache(file, hub.endpoint), "failed")


def explain(cache: HubCache, kind: str, name: str = MODEL) -> str:
    """Return why a model cannot be pulled."""
    with pytest.raises(HubError) as refused:
        pull(name, cache=cache)
    assert refused.value.kind == kind
    assert "\n" not in str(refused.value)
    return str(refused.value)
