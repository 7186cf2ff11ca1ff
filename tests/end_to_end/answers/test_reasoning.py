"""Reasoning with the official SDK, the real engine and a random model whose tokenizer has reasoning markers.

A bias on three tokens makes the model reason: it repeats one word, until the frequency penalty makes the end
marker likelier.
"""

import openai
import pytest

from reprise.config.settings import Settings
from reprise.engine.engine import Engine
from reprise.engine.generating.setup import flat_costs
from reprise.engine.model.loading import LoadedModel, describe
from reprise.engine.pool.residency import Makers
from reprise.server.app import create_app
from tests.engine.support import CONFIGS, VOCAB_SIZE, make_model
from tests.engine.text.test_tokenizer import make_thinker
from tests.server.openai_shapes import valid_chat
from tests.server.served import served

WIDE = {"vocab_size": VOCAB_SIZE + 8}
TOOL = {"type": "function", "function": {"name": "find"}}


@pytest.fixture(scope="module")
def thinker():
    return make_thinker()


@pytest.fixture(scope="module")
def url(thinker):
    def load(_):
        model = make_model("llama", **WIDE)
        info = describe(model, CONFIGS["llama"] | WIDE, "thinker", WIDE["vocab_size"], None, 0.0)
        return LoadedModel(model, thinker, info)

    settings = Settings(model="thinker")
    engine = Engine(settings, Makers(load, costs=flat_costs()))
    engine.start()
    with served(create_app(engine, settings)) as address:
        yield address
    engine.stop(drain_s=0)


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def asked(thinker):
    (begin,), (end,), (word,) = (thinker.encode(text) for text in ("<think>", "</think>", "lantern"))
    return {
        "model": "thinker",
        "messages": [{"role": "user", "content": "Hello!"}],
        "temperature": 0,
        "frequency_penalty": 2,
        "logit_bias": {str(begin): 100, str(word): 100, str(end): 60},
    }


def test_thinking_is_told_apart_and_counted(client, asked):
    answer = client.chat.completions.create(**asked, extra_body={"guided_choice": ["yes", "no"]})
    valid_chat(answer.model_dump(exclude_unset=True))
    message = answer.choices[0].message
    num_words = message.reasoning_content.count("lantern")
    assert message.reasoning_content == "lantern" * num_words
    assert num_words > 3
    assert message.content in ("yes", "no")
    assert answer.usage.completion_tokens_details.reasoning_tokens == num_words + 2


def test_a_stream_thinks_as_a_whole_answer_does(client, asked):
    whole = client.chat.completions.create(**asked, extra_body={"guided_choice": ["yes", "no"]})
    chunks = client.chat.completions.create(
        **asked,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"guided_choice": ["yes", "no"]},
    )
    *parts, closing = chunks
    deltas = [chunk.choices[0].delta for chunk in parts]
    thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert thought == whole.choices[0].message.reasoning_content
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert closing.usage.completion_tokens_details == whole.usage.completion_tokens_details


def test_a_required_call_may_be_thought_over(client, asked):
    answer = client.chat.completions.create(
        **asked, tools=[TOOL], tool_choice="required", parallel_tool_calls=False
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.reasoning_content.startswith("lantern")
    assert choice.message.content is None
    assert [call.function.name for call in choice.message.tool_calls] == ["find"]
    assert choice.message.tool_calls[0].function.arguments == "{}"


def test_an_answer_that_is_cut_while_thinking_has_no_content(client, asked):
    form = {"guided_choice": ["yes", "no"]}
    (choice,) = client.chat.completions.create(**asked, max_tokens=5, extra_body=form).choices
    assert choice.finish_reason == "length"
    assert choice.message.reasoning_content == "lantern" * 4
    assert choice.message.content == ""
