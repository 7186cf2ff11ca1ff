"""Heads are found where users put them, draft there, and are refused with the way out where they cannot."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings, SettingsError
from reprise.engine.checkpoint import inspect_checkpoint
from reprise.engine.engine import Engine
from reprise.engine.generating.setup import flat_costs
from reprise.engine.interface.errors import ModelError
from reprise.engine.model.loading import load_model
from reprise.engine.pool.residency import Makers
from reprise.engine.speculative.heads import dflash, eagle
from reprise.engine.speculative.heads.assistant import read_args
from reprise.engine.speculative.heads.formats import identify
from reprise.engine.speculative.proposers import DraftSources
from reprise.server.banner import banner
from tests.drafters.fakes import scored
from tests.engine.speculative.heads import folders, published
from tests.engine.speculative.heads.test_arithmetic import (
    SLIDING,
    dflash_config,
    eagle_arrays,
    eagle_config,
)
from tests.engine.speculative.heads.test_assistant import LARGE, assistant_config
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


def test_an_eagle_head_drafts_and_can_have_no_window(folder: Path, start: Callable[..., Engine]) -> None:
    config = eagle_config(vocab_size=SIZES["vocab_size"])
    own = folders.write_eagle(folder.parent / "eagle", "SpecForge", config, eagle_arrays(2))
    read = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1]}}
    folders.write_json(own / "config.json", config | read)
    check(start(draft_model=str(own)), "eagle3")
    with pytest.raises(
        ModelError, match=r"--dflash-window is for DFlash drafters; .*eagle is an EAGLE-3 head"
    ):
        start(draft_model=str(own), dflash_window=16)
    with pytest.raises(ModelError, match="eagle is an EAGLE-3 head; use --draft-type eagle3"):
        start(draft_model=str(own), draft_type="mtp")


@pytest.mark.parametrize("kv_bits", [None, 8])
@pytest.mark.parametrize("kind", ["gemma4_assistant", "gemma4_unified_assistant"])
def test_gemma_4_s_assistant_drafts_from_what_the_model_keeps(
    kind: str, kv_bits: int | None, folder: Path, start: Callable[..., Engine]
) -> None:
    config, own = tiny_config("gemma4_text", **SIZES, **LARGE), folder.parent / "assistant"
    folders.write_json(folder / "config.json", config)
    arrays = dict(tree_flatten(make_model(config).parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), arrays, metadata={"format": "mlx"})
    of_head = assistant_config(routed=True, vocab_size=SIZES["vocab_size"]) | {"model_type": kind}
    folders.write_json(own / "config.json", of_head)
    # As tied weights are sometimes written.
    tied = published.tiny_assistant(of_head)
    tied["lm_head.weight"] = tied["model.embed_tokens.weight"]
    folders.save(own / "model.safetensors", tied, "pt")
    info = inspect_checkpoint(str(own))
    assert (info.kind, info.refused) == ("Gemma 4 assistant", ())
    asked = [request(prompt_of(50, i), 30, name=str(i), temperature=0.8 * i, seed=i) for i in range(2)]
    due = [list(ask(start(kv_bits=kv_bits), one).finished().tokens) for one in asked]
    engine = start(kv_bits=kv_bits, draft_model=str(own))
    for one, tokens in zip(asked * 2, due * 2, strict=True):
        finished = ask(engine, one).finished()
        assert list(finished.tokens) == tokens
        assert [name for name, *_ in finished.usage.drafting.by_source] == ["mtp"]
    with pytest.raises(
        ModelError, match=r"--draft-type dflash: .*assistant is a Gemma 4 assistant; use --draft-type mtp"
    ):
        start(draft_model=str(own), draft_type="dflash")


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
    for kind, needed in (("dflash", "a DFlash drafter"), ("eagle3", "an EAGLE-3 head")):
        with pytest.raises(SettingsError, match=f"needs {needed}: set draft_model"):
            start(draft_type=kind)


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


PUBLISHED = json.loads((Path(__file__).parent / "published_configs.json").read_text(encoding="utf-8"))
KINDS = {
    "dflash2": "DFlash 2 drafter", "speculator.dspark": "", "deepseek-v4": None, "dspark": "DSpark drafter",
    "muse": "Muse Glimmer assistant", "assistant": "Gemma 4 assistant", "peagle": "", "_mla": "",
    "eagle": "EAGLE-3 head", "dflash": "DFlash drafter", "domino": "DFlash drafter",
    "deepseek_v4_mtp": "", "glm5_next_mtp": "", "hy_v4_mtp": "", "mtp": "MTP head",
}  # fmt: skip
"""What a published configuration is, by the first of these parts in its name: empty for what is refused, None
for a model."""
UNREAD = ("domino", "TorchSpec/dflash", "MiMo")
"""Configurations of which no head can be made: they lack entries, or have some that nothing here knows."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_are_known_by_their_kind(name: str, tmp_path: Path) -> None:
    entry = PUBLISHED[name]
    folders.write_json(tmp_path / "config.json", entry["config"])
    folders.save(tmp_path / "model.safetensors", {"fc.weight": np.zeros((2, 2))}, None)
    expected = next((kind for part, kind in KINDS.items() if part in name.lower()), None)
    if expected == "":
        is_speculator = "speculators_model_type" in entry["config"]
        why = "of speculators" if is_speculator else "is not supported; supported are"
        with pytest.raises(ModelError, match=why):
            identify(tmp_path)
        return
    found = identify(tmp_path)
    assert (found and found.name) == expected
    if entry.get("partial") or found is None or found.published is None:
        return
    read = dflash.read_config if found.draft_type == "dflash" else partial(eagle.read_config, num_layers=40)
    if found.draft_type == "mtp":
        read = read_args
    if any(part in name for part in UNREAD):
        with pytest.raises((KeyError, ValueError)):
            read(entry["config"])
    else:
        read(entry["config"])
