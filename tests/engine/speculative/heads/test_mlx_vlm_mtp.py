"""MTP heads draft what mlx-vlm's draft from the same states, and are read from the folders that it writes."""

import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from reprise.engine.speculative.heads.formats import FoundHead, find_own_heads, identify
from reprise.engine.speculative.heads.loading import choose, load_head
from tests.engine.speculative.heads import folders, published
from tests.engine.speculative.heads.published import QWEN
from tests.engine.speculative.heads.test_arithmetic import Tiny, full, greedy

NUM, LENGTH = 4, 203


def drafts(tiny: Tiny, found: FoundHead | None, tokens: list[int], states: mx.array) -> list[list[int]]:
    """Return what a head drafts at each position from 1 on."""
    assert found is not None
    head = load_head(found, tiny.target, NUM)
    caches, made = head.make_cache(), []
    for newest in range(1, len(tokens) - 1):
        head.feed(states[:, newest - 1 : newest], mx.array([tokens[newest : newest + 1]]), caches)
        last = mx.array([tokens[newest + 1]])
        made += head.draft(states[:, newest], last, caches, NUM, greedy).tolist()
    return made


# mlx-vlm splits the heads of GLM 4.7 Flash too, but has no class for them.
@pytest.mark.slow
@pytest.mark.parametrize("family", [*QWEN, "glm4_moe_lite", "glm_moe_dsa", "nemotron_h"])
def test_heads_draft_what_those_of_mlx_vlm_draft(family: str, mlx_vlm: Path, tmp_path: Path) -> None:
    tiny = Tiny(family)
    tokens = np.random.default_rng(5).integers(0, 512, LENGTH).tolist()
    states = tiny.states_of(tokens)
    # Numbers that bfloat16 has: so mlx-vlm writes GLM's.
    arrays = {
        name: (array.view(np.uint32) & 0xFFFF0000).view(np.float32)
        for name, array in published.tiny_mtp(family, full(tiny)).items()
    }
    folder = folders.write_head(tmp_path / "model", "shards", family, tiny.config, arrays)
    text = {"tokens": tokens, "embedding": tiny.embedding, "output": tiny.output}
    np.savez(folder / "text.npz", states=np.array(states[0]), **text)
    script, own = Path(__file__).with_name("mlx_vlm_mtp.py"), tmp_path / "own"
    environment = os.environ | {"PYTHONPATH": str(mlx_vlm)}
    subprocess.run([sys.executable, script, folder, own, str(NUM)], check=True, env=environment)
    made = drafts(tiny, choose(find_own_heads(folder, tiny.config)), tokens, states)
    assert len({tuple(draft) for draft in made}) > LENGTH // 2
    assert drafts(tiny, identify(own), tokens, states) == made
    if family != "glm4_moe_lite":
        assert np.load(folder / "drafts.npy").tolist() == made
