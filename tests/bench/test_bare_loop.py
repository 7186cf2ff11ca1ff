import json
import shutil

import mlx.core as mx
import pytest
from mlx_lm import load

from reprise.bench.serving.bare_loop import generate, load_model

PROMPT = [5, 9, 200, 31, 7]


def greedy(folder, count):
    """Generate in the simplest way: no cache, one whole forward pass per token."""
    model, _ = load(str(folder))
    tokens = list(PROMPT)
    for _ in range(count):
        logits = model(mx.array([tokens]))[0, -1]
        tokens.append(mx.argmax(logits).item())
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize("is_drafting", [False, True])
def test_the_loop_says_what_the_model_says_and_passes_its_end_token(model_folder, tmp_path, is_drafting):
    expected = greedy(model_folder, 12)
    # The worst case: the first token would end the answer.
    folder = str(shutil.copytree(model_folder, tmp_path / "ending"))
    config = json.loads((model_folder / "config.json").read_text()) | {"eos_token_id": expected[0]}
    (tmp_path / "ending" / "config.json").write_text(json.dumps(config))
    drafting = (folder,) if is_drafting else ()
    load_model(folder, True, *drafting)
    assert len(generate(PROMPT, 12)[0]) == 1
    load_model(folder, False, *drafting)
    ids, times = generate(PROMPT, 12)
    assert ids == expected
    assert times == sorted(times)
    assert len(times) == 12
