"""Models that are made repetitive run in circles, which differ in where they begin."""

import mlx.core as mx
import pytest
from mlx_lm import load
from mlx_lm.generate import generate_step

from reprise.bench.workloads import make_chats
from reprise.bench.workloads.chats import render, render_turn
from reprise.engine.model.loading import load_tokenizer
from tests.tiny_models import make_repetitive, write_random_model

FAMILIES = [
    "lfm2",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3_text", "gpt_oss", "qwen3_next")),
]
MAX_TOKENS = 64
LATEST_ENTRY, LONGEST_CYCLE = 31, 29


def answers_of(folder, num_prompts):
    """Return the greedy answers to prompts of 64 tokens; none can end early."""
    tokenizer, (model, _) = load_tokenizer(folder), load(str(folder))

    def forbid_ends(_, logits):
        logits[:, list(tokenizer.eos_ids)] = -mx.inf
        return logits

    return [
        [token for token, _ in generate_step(
            mx.array(render_turn(tokenizer, turn)), model, max_tokens=MAX_TOKENS,
            logits_processors=[forbid_ends],
        )]
        for chat in make_chats("words", num_prompts, 5, lambda text: len(render(tokenizer, text)), 64)
        for turn in chat.turns
    ]  # fmt: skip


def cycle_of(tokens):
    """Return the length of the cycle that the tokens are in from LATEST_ENTRY on, if any."""
    tail = tokens[LATEST_ENTRY:]
    return next((n for n in range(1, LONGEST_CYCLE + 1) if tail[n:] == tail[:-n]), None)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_answer_of_a_repetitive_model_soon_runs_in_a_circle(name, tmp_path):
    answers = answers_of(write_random_model(name, tmp_path / name, is_repetitive=True), 3)
    assert [len(answer) for answer in answers] == [MAX_TOKENS] * 3
    assert all(cycle_of(answer) for answer in answers)
    assert len(set(map(tuple, answers))) > 1


def test_an_answer_of_any_other_random_model_does_not(tmp_path):
    (answer,) = answers_of(write_random_model("gemma3_text", tmp_path / "gemma3_text"), 1)
    assert cycle_of(answer) is None


def test_a_model_whose_mixers_are_not_known_is_refused():
    with pytest.raises(ValueError, match=r"no weights end in \.o_proj\.weight or \.out_proj\.weight"):
        make_repetitive({"lm_head.weight": mx.ones((8, 8)), "layers.0.dense.weight": mx.ones((8, 8))})
