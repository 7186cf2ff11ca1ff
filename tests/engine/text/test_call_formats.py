"""Formats of tool calls that mlx-lm does not know are recognized by template and vocabulary."""

import pytest
from mlx_lm.chat_templates import deepseek_v32
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_tokenizer
from transformers import AddedToken

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.text.detokenizer import Detokenizer
from reprise.engine.text.tokenizer import HARMONY_TOKENS, Tokenizer
from tests.engine.support import VOCAB_SIZE

DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>")


def make(special=(), template=""):
    inner = load_tokenizer(BUNDLED_MODEL)._tokenizer
    inner.add_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    inner.chat_template = template
    return Tokenizer(TokenizerWrapper(inner), VOCAB_SIZE + len(special))


@pytest.mark.parametrize(
    ("special", "template", "name", "start", "end"),
    [
        (DEEPSEEK, "<｜tool▁calls▁begin｜> ```json", "deepseek_v3", DEEPSEEK[0], DEEPSEEK[1]),
        (DEEPSEEK, "<｜tool▁calls▁begin｜>", "deepseek_v31", DEEPSEEK[0], DEEPSEEK[1]),
        (("｜DSML｜",), "", "deepseek_v32", "<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
        ((), "<｜DSML｜tool_calls>", "deepseek_v32", "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
        ((), 'Environment: ipython {"name": f, "parameters": {}}', "llama3", '{"name": ', None),
        ((), "nothing", "", None, None),
    ],
)
def test_a_format_is_recognized(special, template, name, start, end):
    markers = make(special, template).markers
    assert markers.call_format == name
    assert (markers.call_start and markers.call_start.text) == start
    assert (markers.call_end and markers.call_end.text) == end
    assert markers.can_call == bool(name)


def test_gpt_oss_has_channels_and_its_own_ends():
    tokenizer = make(HARMONY_TOKENS)
    markers = tokenizer.markers
    assert (markers.is_harmony, markers.can_call, markers.can_think) == (True, True, True)
    assert [marker.text for marker in markers.inner] == list(HARMONY_TOKENS)
    assert {tokenizer.encode("<|call|>")[0], tokenizer.encode("<|return|>")[0]} < tokenizer.eos_ids
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hello"
    detokenizer = Detokenizer(tokenizer, [])
    assert "".join(detokenizer.add(token) for token in tokenizer.encode(text)) == text
    tokens = tokenizer.encode(text)
    assert (
        markers.count_reasoning_tokens(tokens, False, 1) == tokens.index(tokenizer.encode("<|end|>")[0]) + 1
    )


def test_mlx_lm_s_template_of_deepseek_v3_2_is_rendered():
    inner = load_tokenizer(BUNDLED_MODEL)._tokenizer
    inner.add_tokens([AddedToken("｜DSML｜", special=True, normalized=False)])
    inner.chat_template = None
    wrapped = TokenizerWrapper(inner, chat_template=deepseek_v32.apply_chat_template)
    tokenizer = Tokenizer(wrapped, VOCAB_SIZE + 1)
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": {"zone": "ż", "n": 2}}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "noon"},
    ]
    tools = [{"type": "function", "function": {"name": "now", "parameters": {}}}]
    given = {"reasoning_effort": "high", "enable_thinking": False}
    text = tokenizer.decode(tokenizer.render_chat(messages, tools, given))
    assert '<｜DSML｜parameter name="zone" string="true">ż</｜DSML｜parameter>' in text
    assert '<｜DSML｜parameter name="n" string="false">2</｜DSML｜parameter>' in text
    assert '"name": "now"' in text
    assert "noon" in text
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"zone": "ż", "n": 2}
