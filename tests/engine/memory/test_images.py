"""What prompts with pictures take of memory stays within what the engine was given."""

from dataclasses import replace

import pytest

from reprise.engine.memory.budget import KEPT_SHARE
from tests.engine.memory.test_estimate import bytes_alone, run
from tests.engine.support import prompt_of
from tests.engine.vision.seeing import Picture, looked_at, make_seeing


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_vl", "qwen3_5", "gemma3", "mistral3", "lfm2_vl"])
def test_pictures_fit_into_the_memory_that_one_prompt_alone_needs(name: str) -> None:
    sizes = {"num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 64}
    loaded = make_seeing(name, **sizes, **dict.fromkeys(("hidden_size", "block_dim"), 256))
    assert loaded.info.vision
    loaded.info = replace(
        loaded.info, context_tokens=4096, vision=replace(loaded.info.vision, max_tokens=192)
    )
    never_end = tuple((token, -1000.0) for token in sorted(loaded.tokenizer.eos_ids))
    asked = [
        looked_at(
            prompt_of(150, number), Picture(number, 12, 16), prompt_of(40),
            Picture(9 + number, 8, 12), prompt_of(30),
            name=str(number), max_tokens=12, logit_bias=never_end,
        )
        for number in range(4)
    ]  # fmt: skip
    needed = bytes_alone(
        loaded, max(len(one.prompt) + one.max_tokens for one in asked), prefill_chunk_tokens=64
    )
    memory_bytes = loaded.info.weight_bytes + needed
    _, largest, taken = run(
        loaded, asked, False, memory_bytes=memory_bytes, prefill_chunk_tokens=64, prefix_cache_bytes=2**30
    )
    assert taken <= needed
    # Features count twice from when they were fed to the next estimate: as working memory, and as cached.
    assert largest <= needed + needed // KEPT_SHARE


def test_log_probabilities_of_a_picture_that_is_fed_as_a_whole_fit_too() -> None:
    loaded = make_seeing("gemma3")
    assert loaded.info.vision
    loaded.info = replace(loaded.info, vision=replace(loaded.info.vision, max_tokens=400))
    asked = looked_at(prompt_of(9), Picture(1, 20, 20), prompt_of(5), max_tokens=1)
    asked = replace(asked, prompt_logprobs=True, top_logprobs=5)
    needed = bytes_alone(loaded, len(asked.prompt) + 1, prefill_chunk_tokens=64)
    _, largest, taken = run(loaded, [asked], False, prefill_chunk_tokens=64, prefix_cache_bytes=0)
    assert taken <= largest <= needed
