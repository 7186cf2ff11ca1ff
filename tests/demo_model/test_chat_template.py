"""The chat template renders what the model was trained on, token for token."""

import json
import random
from typing import Any

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_tokenizer

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.demo_model.training.corpus import FAMILIES, Source, conversations, held_out
from reprise.demo_model.training.corpus.rendering import render


@pytest.fixture(scope="module")
def tokenizer() -> TokenizerWrapper:
    return load_tokenizer(BUNDLED_MODEL)


@pytest.mark.parametrize("family", FAMILIES)
def test_template_equals_training_text(family: str, tokenizer: TokenizerWrapper) -> None:
    for conversation in held_out(family, 3, seed=8):
        trained = "".join(text for text, _ in render(conversation))
        rendered = tokenizer.apply_chat_template(
            conversation.messages, tools=conversation.tools or None, tokenize=False
        )
        assert rendered == trained


def test_system_messages_and_the_answer_s_beginning_are_rendered(tokenizer: TokenizerWrapper) -> None:
    stream = conversations(Source(random.Random(4)))
    conversation = next(c for c in stream if c.tools and c.messages[0]["role"] == "system")
    trained = "".join(text for text, _ in render(conversation))
    options: dict[str, Any] = {"tools": conversation.tools, "tokenize": False}
    assert tokenizer.apply_chat_template(conversation.messages, **options) == trained
    rendered = tokenizer.apply_chat_template(conversation.messages, add_generation_prompt=True, **options)
    assert rendered == trained + "<|im_start|>assistant\n"


def test_mlx_lm_knows_the_form_of_its_tool_calls(tokenizer: TokenizerWrapper) -> None:
    (conversation,) = held_out("tool call", 1, seed=3)
    answer = next(text for text, is_answer in render(conversation) if is_answer)
    start, end = tokenizer.tool_call_start, tokenizer.tool_call_end
    call = answer[answer.index(start) + len(start) : answer.index(end)]
    assert tokenizer.tool_parser(call, None) == conversation.messages[-1]["tool_calls"][0]["function"]
    assert json.loads(call)["name"]
