import pytest

from bench.errors import BenchError
from bench.serving.servers import PromptMaker

MOST_TOKENS_OF_A_WORD = 14
"""The test's tokenizer knows few words."""


@pytest.mark.parametrize("num_tokens", [40, 64, 256, 301])
def test_prompts_have_the_asked_length_or_a_word_less(tokenizer, num_tokens):
    maker = PromptMaker(tokenizer, num_tokens, seed=1)
    for _ in range(20):
        prompt = maker.make()
        assert tokenizer.render_chat(list(prompt.messages)) == list(prompt.ids)
        assert num_tokens - MOST_TOKENS_OF_A_WORD < len(prompt.ids) <= num_tokens


def test_no_prompt_begins_like_another(tokenizer):
    maker = PromptMaker(tokenizer, 64, seed=1)
    openings = [maker.make().messages[0]["content"].split()[0] for _ in range(60)]
    assert len(set(openings)) == 60


def test_a_seed_makes_the_same_prompts_again(tokenizer):
    first, second, other = (PromptMaker(tokenizer, 64, seed) for seed in (1, 1, 2))
    made = [first.make() for _ in range(5)]
    assert made == [second.make() for _ in range(5)]
    assert not {one.ids for one in made} & {other.make().ids for _ in range(5)}


def test_a_length_that_the_template_alone_fills_is_refused(tokenizer):
    template = len(tokenizer.render_chat([{"role": "user", "content": ""}]))
    with pytest.raises(BenchError, match=f"--prompt-tokens {template} is too short for the chat template"):
        PromptMaker(tokenizer, template, seed=1).make()
