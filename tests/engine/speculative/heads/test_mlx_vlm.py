"""Heads draft what mlx-vlm's drafters of the same kind do, by the same weights, states, keys and values."""

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache

from reprise.engine.kv_cache.rows import SeparateRows
from reprise.engine.kv_cache.sliding_window import WindowKVCache
from reprise.engine.speculative.heads.formats import identify
from reprise.engine.speculative.heads.head import Target, TargetEnds
from reprise.engine.speculative.heads.loading import load_head
from tests.engine.speculative.heads import folders
from tests.engine.speculative.heads.dflash_kinds import CONFIGS, HIDDEN, NUM_LAYERS, VOCABULARY
from tests.engine.speculative.heads.test_arithmetic import eagle_arrays, eagle_config
from tests.engine.speculative.heads.test_assistant import FULL, WINDOW, assistant_config, draft
from tests.tiny_models import tiny_config

NUM_POSITIONS = 200
SINGLE, SEVERAL, MIXED = (1,), (3, 2, 5), (1, 3, 1, 5, 2, 1, 4)
"""Positions that rounds commit, in rotation."""

ROUNDS = {
    # Behind a round of several, mlx-vlm's blocks see more than the window.
    "DFlash, sliding": SINGLE,
    "Laguna": SINGLE,
    # Behind a round of one, mlx-vlm masks keys that it has not in order.
    "DSpark, causal, behind the known token": SEVERAL,
    "Muse Glimmer": SEVERAL,
}


def target_of(embedding: mx.array, output: mx.array) -> Target:
    config = {"hidden_size": HIDDEN, "vocab_size": VOCABULARY}
    ends = TargetEnds(*[lambda ids: embedding[ids], lambda states: states @ output.T] * 2)
    return Target("a target", config, NUM_LAYERS, VOCABULARY, ends)


def run_theirs(script: str, mlx_vlm: Path, folder: Path) -> mx.array:
    """Let mlx-vlm draft by a folder's inputs; return the drafts, and leave only the drafter in the folder."""
    subprocess.run(
        [sys.executable, Path(__file__).with_name(script), folder],
        check=True,
        env=os.environ | {"PYTHONPATH": str(mlx_vlm)},
    )
    for file in ("inputs", "drafts"):
        (folder / f"{file}.safetensors").rename(folder / f"{file}.arrays")
    return mx.load(str(folder / "drafts.arrays"), format="safetensors")["drafts"]  # type: ignore[index,return-value]


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
def test_drafts_are_those_of_mlx_vlm(kind: str, mlx_vlm: Path, tmp_path: Path) -> None:
    config = CONFIGS[kind]
    folders.write_json(tmp_path / "config.json", config)
    mx.random.seed(5)
    num, pattern = 5, ROUNDS.get(kind, MIXED)
    rounds = [*itertools.islice(itertools.cycle(pattern), NUM_POSITIONS * len(pattern) // sum(pattern))]
    embedding, output = mx.random.normal((2, VOCABULARY, HIDDEN))
    num_taps = len(config.get("dflash_config", config)["target_layer_ids"])
    states = mx.random.normal((1, sum(rounds), num_taps * HIDDEN))
    tokens = mx.random.randint(0, VOCABULARY, (sum(rounds) + 1,))
    given = {"embedding": embedding, "output": output, "states": states, "tokens": tokens}
    numbers = {"rounds": mx.array(rounds), "num": mx.array(num)}
    mx.save_safetensors(str(tmp_path / "inputs.safetensors"), given | numbers)
    due = run_theirs("mlx_vlm_dflash.py", mlx_vlm, tmp_path)
    found = identify(tmp_path)
    assert found is not None
    head = load_head(found, target_of(embedding, output), 3)
    caches, drafts, position = head.make_cache(), [], 0
    for committed in rounds:
        end = position + committed
        if committed > 1:
            following = mx.zeros((1, committed - 1), mx.int32)
            head.feed(states[:, position : end - 1], following, caches)
        drafts.append(
            head.draft(
                states[:, end - 1],
                tokens[end : end + 1],
                caches,
                num,
                lambda logits, _: mx.argmax(logits, axis=-1),
            )[0]
        )
        # A draft takes the newest position back; it is fed with the others.
        head.feed(states[:, end - 1 : end], mx.zeros((1, 1), mx.int32), caches)
        position = end
    assert mx.stack(drafts).tolist() == due.tolist()
    assert len({tuple(draft) for draft in due.tolist()}) > len(rounds) / 2


@pytest.mark.slow
@pytest.mark.parametrize("routed", [False, True], ids=["tied", "routed"])
def test_an_assistant_s_drafts_are_those_of_mlx_vlm(routed: bool, mlx_vlm: Path, tmp_path: Path) -> None:
    own, num, config = assistant_config(routed), 5, tiny_config("gemma4_text")
    folders.write_json(tmp_path / "config.json", own)
    mx.random.seed(5)
    embedding, states = mx.random.normal((512, 64)), mx.random.normal((NUM_POSITIONS, 64))
    tokens = mx.random.randint(0, 512, (NUM_POSITIONS + 1,))
    given = {"embedding": embedding, "states": states, "tokens": tokens, "num": mx.array(num)}
    for kind in (FULL, WINDOW):
        keys, values = mx.random.normal((2, 1, config["num_key_value_heads"], NUM_POSITIONS, 32))
        given |= {f"{kind}.keys": keys, f"{kind}.values": values}
    mx.save_safetensors(str(tmp_path / "inputs.safetensors"), given)
    due = run_theirs("mlx_vlm_assistant.py", mlx_vlm, tmp_path)

    found = identify(tmp_path)
    assert found is not None
    head = load_head(found, replace(target_of(embedding, embedding), config=config, vocab_size=512), num)
    drafts: list[list[int]] = []
    caches = [WindowKVCache(16), KVCache()]
    for end in range(1, NUM_POSITIONS + 1):
        for kind, one in zip((WINDOW, FULL), caches, strict=True):
            one.update_and_fetch(
                *(given[f"{kind}.{part}"][:, :, end - 1 : end] for part in ("keys", "values"))
            )
        rows = SeparateRows(None)
        rows.add(caches, end)
        drafts += draft(head, rows, [0], [states[end - 1]], [int(tokens[end].item())], num)
    assert drafts == due.tolist()
    assert len({tuple(draft) for draft in drafts}) > NUM_POSITIONS / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {"norm_before_fc": True, "norm_before_residual": True}, {"num_hidden_layers": 2}],
    ids=["plain", "normed", "deeper"],
)
def test_drafts_of_eagle_heads_are_those_of_mlx_vlm(
    changes: dict[str, Any], mlx_vlm: Path, tmp_path: Path
) -> None:
    layers = eagle_config(**changes, eagle_config=None)
    config = layers | {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "transformer_layer_config": layers}
    random, num = np.random.default_rng(3), 4
    embedding = random.normal(size=(512, 64)).astype(np.float32)
    ids = random.integers(0, 512, (1, NUM_POSITIONS + 1))
    states = random.normal(size=(1, NUM_POSITIONS, 3 * 64)).astype(np.float32)
    folders.write_json(tmp_path / "config.json", config)
    arrays = eagle_arrays(3, **changes) | {"embed_tokens.weight": embedding}
    folders.save(tmp_path / "model.safetensors", arrays, "pt")
    np.savez(tmp_path / "text.npz", ids=ids, states=states, num=num)
    script = Path(__file__).with_name("mlx_vlm_eagle.py")
    subprocess.run(
        [sys.executable, script, tmp_path], check=True, env=os.environ | {"PYTHONPATH": str(mlx_vlm)}
    )

    found = identify(tmp_path)
    assert found is not None
    sizes = {"hidden_size": 64, "vocab_size": 512}
    ends = target_of(mx.array(embedding), mx.array(embedding)).ends
    head = load_head(found, Target("a target", sizes, 3, 512, ends), num)
    given, following, caches, drafts = mx.array(states), mx.array(ids[:, 1:]), head.make_cache(), []
    for at in range(NUM_POSITIONS):
        last = following[:, at]
        drafts += head.draft(given[:, at], last, caches, num, lambda logits, _: logits.argmax(-1)).tolist()
        head.feed(given[:, at : at + 1], last[:, None], caches)
    assert drafts == np.load(tmp_path / "drafts.npy").tolist()
