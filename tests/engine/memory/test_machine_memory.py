"""Weights are wired only where that has an effect, and only as much as they take."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from reprise.config.settings import Settings
from reprise.engine.embedding.loading import load_embedding_model
from reprise.engine.interface.errors import ModelError
from reprise.engine.kv_cache.rows import Sharing
from reprise.engine.memory.budget import make_memory_budget
from tests.engine.driven import loaded_once
from tests.engine.embedding.encoder_folders import write_encoder

MEBI = 2**20


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pretend to be a Mac that wires up to 64 GiB; return the limits that were set."""
    limits: list[int] = []
    loaded_once("llama")
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(
        mx,
        "device_info",
        lambda: {"max_recommended_working_set_size": 65536 * MEBI, "device_name": "Mac", "memory_size": 0},
    )
    monkeypatch.setattr(mx, "set_wired_limit", limits.append)
    return limits


def load(**settings: Any) -> int:
    """Make a memory budget; return the bytes of the weights."""
    loaded = replace(loaded_once("llama"))
    make_memory_budget(loaded, Settings(memory_bytes=2**40, **settings), Sharing.GROUPS, None)
    return loaded.info.weight_bytes


def test_weights_are_wired_if_asked(wired: list[int]) -> None:
    weight_bytes = load(wire_weights=True)
    assert len(wired) == 1
    assert weight_bytes <= wired[0] <= mx.get_active_memory() + weight_bytes


def test_those_of_a_model_that_embeds_too(wired: list[int], tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "tiny")
    load_embedding_model(Settings(model=str(folder), wire_weights=True), "tiny")
    assert len(wired) == 1
    assert wired[0] > 0


def test_nothing_is_wired_by_default(wired: list[int]) -> None:
    load()
    assert wired == []


def test_more_than_the_system_wires_is_refused(wired: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "get_active_memory", lambda: 65537 * MEBI)
    with pytest.raises(ModelError, match=r"65,537 MiB.*at most 65,536 MiB.*iogpu\.wired_limit_mb=65537"):
        load(wire_weights=True)
    assert wired == []


def test_without_metal_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    with pytest.raises(ModelError, match="--wire-weights has an effect with Metal only"):
        load(wire_weights=True)
