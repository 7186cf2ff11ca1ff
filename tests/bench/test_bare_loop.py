import mlx.core as mx
import pytest
from mlx_lm import load

from bench.serving.bare_loop import generate


@pytest.fixture(scope="module")
def loaded(model_folder):
    return load(str(model_folder))


def greedy(model, prompt, count):
    """Generate in the simplest way: no cache, one whole forward pass per token."""
    tokens = list(prompt)
    for _ in range(count):
        logits = model(mx.array([tokens]))[0, -1]
        tokens.append(mx.argmax(logits).item())
    return tokens[len(prompt) :]


def test_the_loop_says_what_the_model_says_and_passes_its_end_token(loaded):
    model, tokenizer = loaded
    prompt = [5, 9, 200, 31, 7]
    expected = greedy(model, prompt, 12)
    # The worst case: the first token would end the answer.
    tokenizer.eos_token_ids = {expected[0]}
    assert len(generate(model, tokenizer, prompt, 12)["token_ids"]) == 1
    tokenizer.eos_token_ids = set()
    result = generate(model, tokenizer, prompt, 12)
    assert result["token_ids"] == expected
    assert result["arrived_s"] == sorted(result["arrived_s"])
    assert len(result["arrived_s"]) == 12
