"""Heads are found where users put them, draft there, and are refused with the way out where they cannot."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings, SettingsError
from reprise.engine.engine import Engine
from reprise.engine.generating.setup import flat_costs
from reprise.engine.interface.errors import ModelError
from reprise.engine.model.loading import load_model
from reprise.engine.pool.residency import Makers
from reprise.engine.speculative.proposers import DraftSources
from reprise.server.banner import banner
from tests.drafters.fakes import scored
from tests.engine.speculative.heads import folders, published
from tests.engine.speculative.heads.test_arithmetic import SLIDING, dflash_config
from tests.engine.support import SIZES, ask, oracle, prompt_of, request
from tests.tiny_models import make_model, tiny_config

CONFIG = tiny_config("qwen3_next", **SIZES) | {"max_position_embeddings": 1024}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a tiny model without a head."""
    model = tmp_path / "model"
    folders.write_json(model / "config.json", CONFIG)
    arrays = dict(tree_flatten(make_model(CONFIG).parameters()))
    mx.save_safetensors(str(model / "model.safetensors"), arrays, metadata={"format": "mlx"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED_MODEL / name, model)
    return model


@pytest.fixture
def start(folder: Path) -> Any:
    """Return a function that starts an engine with that model; all engines are stopped at the end."""
    engines: list[Engine] = []

    def started(**settings: Any) -> Engine:
        given = Settings(model=str(folder), keeps_costs=False, num_draft_tokens=3, **settings)
        sources = DraftSources({}, scored(0.0))
        engine = Engine(given, Makers(make_sources=lambda _: sources, costs=flat_costs()))
        engine.start()
        engines.append(engine)
        return engine

    yield started
    for engine in engines:
        engine.stop(drain_s=0)


def write_mtp(folder: Path, layout: str) -> Path:
    return folders.write_head(folder, layout, "qwen3_next", CONFIG, published.tiny_mtp("qwen3_next", CONFIG))


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


def check(engine: Engine, source: str) -> None:
    """Check that a head drafts for an answer and changes nothing."""
    assert engine.info.head == source
    asked = request(prompt_of(50), 30, temperature=0.8)
    finished = ask(engine, asked).finished()
    loaded = load_model(engine.settings.model_source, "alone", None)
    assert list(finished.tokens) == oracle(loaded, asked)
    assert [name for name, *_ in finished.usage.drafting.by_source] == [source]


@pytest.mark.parametrize("layout", ["mtp.safetensors", "mtp/weights.safetensors"])
def test_a_head_in_the_model_s_folder_is_found(
    layout: str, folder: Path, start: Callable[..., Engine]
) -> None:
    write_mtp(folder, layout)
    check(start(), "mtp")


def test_a_head_in_a_folder_of_its_own_takes_precedence(folder: Path, start: Callable[..., Engine]) -> None:
    write_mtp(folder, "mtp.safetensors")
    own = folder.parent / "block"
    folders.write_json(own / "config.json", dflash_config(vocab_size=SIZES["vocab_size"]))
    folders.save(own / "model.safetensors", published.tiny_dflash(dflash_config()), None)
    check(start(draft_model=str(own), draft_type="dflash"), "dflash")
    with pytest.raises(
        ModelError, match=r"--draft-type mtp: .*block is a DFlash drafter; use --draft-type dflash"
    ):
        start(draft_model=str(own), draft_type="mtp")


def test_only_a_dflash_drafter_of_full_attention_can_have_a_window(
    folder: Path, start: Callable[..., Engine]
) -> None:
    own = folder.parent / "block"
    folders.write_json(own / "config.json", dflash_config(vocab_size=SIZES["vocab_size"]))
    folders.save(own / "model.safetensors", published.tiny_dflash(dflash_config()), None)
    check(start(draft_model=str(own), dflash_window=16), "dflash")
    for changes, why in (
        (SLIDING, "layers have windows of their own; leave it out"),
        ({"rope_scaling": YARN}, "positions are scaled; leave it out"),
    ):
        config = dflash_config(vocab_size=SIZES["vocab_size"], **changes)
        folders.write_json(own / "config.json", config)
        start(draft_model=str(own))
        with pytest.raises(ModelError, match=f"--dflash-window: .*{why}"):
            start(draft_model=str(own), dflash_window=16)
    for ways in ({}, {"draft_model": str(folder)}):
        with pytest.raises(ModelError, match="--dflash-window is for DFlash drafters; name the folder"):
            start(dflash_window=16, **ways)


def test_quantized_keys_of_a_model_that_cannot_have_them_are_refused_by_name(start_engine: Any) -> None:
    with pytest.raises(ModelError, match=r"--kv-bits 8: the model has no plain keys and values"):
        start_engine("mamba2", kv_bits=8)


def test_without_a_head_only_a_server_that_is_to_have_one_does_not_start(
    start: Callable[..., Engine],
) -> None:
    assert start().info.head is None
    with pytest.raises(ModelError, match="--draft-type mtp: model has no MTP head; name the folder"):
        start(draft_type="mtp")
    with pytest.raises(SettingsError, match="needs a DFlash drafter: set draft_model"):
        start(draft_type="dflash")


def test_a_truncated_head_is_left_out_unless_it_is_asked_for(
    folder: Path, start: Callable[..., Engine]
) -> None:
    write_mtp(folder, "mtp.safetensors")
    file = folder / "mtp.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    engine = start()
    info = engine.info
    assert info.head is None
    assert "mtp.safetensors" in info.head_fault
    assert f"not used {info.head_fault}" in banner(info, Settings(), "http://here", engine.tokenizer, "auto")
    with pytest.raises(ModelError, match=r"mtp\.safetensors"):
        start(draft_type="mtp")
