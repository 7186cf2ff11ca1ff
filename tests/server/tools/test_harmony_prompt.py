"""Conversations are brought into the form that gpt-oss's chat template takes."""

from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_tokenizer
from transformers import AddedToken

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.text.markers import PREAMBLE
from reprise.engine.text.tokenizer import HARMONY_TOKENS, Tokenizer
from reprise.server.prompt.encoder import (
    to_harmony_arguments,
    to_harmony_messages,
    to_harmony_tools,
)


def call(name):
    return {"id": name, "type": "function", "function": {"name": name, "arguments": {}}}


def result(name):
    return {"role": "tool", "tool_call_id": name, "content": f"of {name}"}


def test_parallel_calls_stand_each_before_its_result():
    both = {
        "role": "assistant",
        "content": "Plan",
        "reasoning_content": "hm",
        "tool_calls": [call("a"), call("b")],
    }
    assert to_harmony_messages([both, result("b"), result("a")]) == [
        {"role": "user", "content": f"{PREAMBLE}Plan{PREAMBLE}"},
        {"role": "assistant", "tool_calls": [call("a")], "thinking": "hm"},
        {"role": "tool", "content": "of a"},
        {"role": "assistant", "tool_calls": [call("b")]},
        {"role": "tool", "content": "of b"},
    ]


HARMONY = """{#- Reasoning stands before a call, unless an answer follows. -#}
{%- for one in messages %}
    {%- if one.role == 'assistant' and one.tool_calls %}
        {%- if one.thinking and not messages[loop.index:] | rejectattr('tool_calls') | selectattr('role', 'equalto', 'assistant') | list %}
            {{- '<|start|>assistant<|channel|>analysis<|message|>' + one.thinking + '<|end|>' }}
        {%- endif %}
        {{- '<|start|>assistant to=functions.' + one.tool_calls[0].function.name + '<|call|>' }}
    {%- elif one.role == 'assistant' %}{{ '<|start|>assistant<|channel|>final<|message|>' + one.content + '<|end|>' }}
    {%- else %}{{ '<|start|>' + one.role + '<|message|>' + one.content + '<|end|>' }}{% endif %}
{%- endfor %}"""  # noqa: E501
"""The rules of gpt-oss's template for history."""


def test_words_before_a_call_stay_in_the_commentary_when_its_reasoning_is_dropped():
    inner = load_tokenizer(BUNDLED_MODEL)._tokenizer
    inner.add_tokens([AddedToken(text, special=True, normalized=False) for text in HARMONY_TOKENS])
    inner.chat_template = HARMONY
    tokenizer = Tokenizer(TokenizerWrapper(inner), len(inner))

    def render(*messages):
        ids = tokenizer.render_chat(to_harmony_messages(messages), end="messages")
        return tokenizer.decode(ids)

    asked = {"role": "user", "content": f"{PREAMBLE}hello{PREAMBLE}"}
    called = {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "hm",
        "tool_calls": [call("a")],
    }
    head = "<|start|>user<|message|>hello<|end|>"
    analysis = "<|start|>assistant<|channel|>analysis<|message|>hm<|end|>"
    words = "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    rest = "<|start|>assistant to=functions.a<|call|><|start|>tool<|message|>of a<|end|>"
    done = {"role": "assistant", "content": "done"}
    final = "<|start|>assistant<|channel|>final<|message|>done<|end|>"
    assert render(asked, called, result("a")) == head + analysis + words + rest
    assert render(asked, called, result("a"), done) == head + words + rest + final


def test_no_message_is_lost():
    said = [
        {"role": "system", "content": "one"},
        {"role": "system", "content": "two"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [call("a")]},
        result("a"),
        {"role": "assistant", "content": "done", "reasoning_content": "hm"},
        {"role": "system", "content": "later"},
    ]
    assert to_harmony_messages(said) == [
        {"role": "system", "content": "one\n\ntwo"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "tool_calls": [call("a")]},
        {"role": "tool", "content": "of a"},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "later"},
    ]


def test_every_tool_has_a_description():
    (tool,) = to_harmony_tools([{"type": "function", "function": {"name": "f"}}])
    assert tool["function"] == {"name": "f", "description": ""}


def test_efforts_that_the_model_does_not_know_become_those_that_it_knows():
    assert to_harmony_arguments({"reasoning_effort": "none"}) == {"reasoning_effort": "low"}
    assert to_harmony_arguments({"reasoning_effort": "high"}) == {"reasoning_effort": "high"}
    assert to_harmony_arguments({}) == {}
