from itertools import islice

import pytest

from reprise.bench.experiment import BenchError
from reprise.bench.serving.run_serve import random_turns

MOST_TOKENS_OF_A_WORD = 14
"""The test's tokenizer knows few words."""


@pytest.mark.parametrize("num_tokens", [40, 64, 256, 301])
def test_prompts_have_the_asked_length_or_a_word_less(tokenizer, num_tokens):
    for prompt in islice(random_turns(tokenizer, num_tokens, seed=1), 20):
        ids = tokenizer.render_chat(list(prompt.messages))
        assert num_tokens - MOST_TOKENS_OF_A_WORD < len(ids) <= num_tokens


def test_no_prompt_begins_like_another(tokenizer):
    made = islice(random_turns(tokenizer, 64, seed=1), 60)
    openings = [one.messages[0]["content"].split()[0] for one in made]
    assert len(set(openings)) == 60


def test_a_seed_makes_the_same_prompts_again(tokenizer):
    made, again, other = ([*islice(random_turns(tokenizer, 64, seed), 5)] for seed in (1, 1, 2))
    assert made == again
    assert not {one.messages[0]["content"] for one in made} & {one.messages[0]["content"] for one in other}


def test_a_length_that_the_template_alone_fills_is_refused(tokenizer):
    template = len(tokenizer.render_chat([{"role": "user", "content": ""}]))
    with pytest.raises(BenchError, match=f"--prompt-tokens {template} is too short for the chat template"):
        next(random_turns(tokenizer, template, seed=1))
