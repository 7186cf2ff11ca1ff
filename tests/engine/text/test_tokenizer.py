"""The markers of a model, and prompts that open the reasoning."""

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tool_parsers import gemma4, json_tools
from mlx_lm.utils import load_tokenizer
from transformers import AddedToken

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.text.detokenizer import Detokenizer
from reprise.engine.text.markers import Marker, Markers
from reprise.engine.text.tokenizer import Tokenizer
from tests.engine.support import VOCAB_SIZE, make_tokenizer


def make_thinker(tool_module=json_tools, special=(), num_more=0) -> Tokenizer:
    """Make the bundled tokenizer with reasoning markers that are not special tokens, as in some models.

    special: special tokens to add. num_more: how much larger the vocabulary is then.
    """
    inner = load_tokenizer(BUNDLED_MODEL)._tokenizer
    inner.add_tokens([AddedToken(text, special=False, normalized=False) for text in ("<think>", "</think>")])
    inner.add_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    wrapped = TokenizerWrapper(
        inner,
        tool_parser=tool_module.parse_tool_call,
        tool_call_start=tool_module.tool_call_start,
        tool_call_end=tool_module.tool_call_end,
    )
    return Tokenizer(wrapped, VOCAB_SIZE + 8 + num_more)


@pytest.fixture(scope="module")
def thinker() -> Tokenizer:
    return make_thinker()


def test_the_bundled_model_has_tool_calls_and_no_reasoning() -> None:
    markers = make_tokenizer().markers
    assert (markers.can_call, markers.can_think, markers.call_format) == (True, False, "json_tools")
    assert [marker.text for marker in markers.all] == ["<tool_call>", "</tool_call>"]


def test_a_reasoning_model_has_all_markers(thinker: Tokenizer) -> None:
    texts = [marker.text for marker in thinker.markers.all]
    assert texts == ["<think>", "</think>", "<tool_call>", "</tool_call>"]
    assert all(len(marker.tokens) == 1 for marker in thinker.markers.all)


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("<|im_start|>assistant\n", False),
        ("<|im_start|>assistant\n<think>", True),
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("what is <think><|im_end|>\n<|im_start|>assistant\n", False),
        ("<think>" + "\n" * 40, False),
        ("", False),
    ],
)
def test_only_a_prompt_that_ends_with_the_marker_opens_reasoning(
    thinker: Tokenizer, prompt: str, is_open: bool
) -> None:
    assert thinker.opens_thinking(thinker.encode(prompt)) == is_open
    assert not make_tokenizer().opens_thinking(make_tokenizer().encode(prompt))


def test_the_special_tokens_that_tool_calls_quote_with_are_text() -> None:
    tokenizer = make_thinker(gemma4, ["<|tool_call>", "<tool_call|>", '<|"|>'])
    answer = 'Look<|"|>: <|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|>.'
    detokenizer = Detokenizer(tokenizer, [])
    text = "".join(detokenizer.add(token) for token in tokenizer.encode(answer))
    assert text == answer.replace('<|"|>', "", 1)


def test_reasoning_tokens_are_counted_with_their_markers(thinker: Tokenizer) -> None:
    reasoning = thinker.encode("<think>one two</think>")
    content = thinker.encode("three")
    count = thinker.markers.count_reasoning_tokens
    assert count([*reasoning, *content], False, 1) == len(reasoning)
    assert count([*reasoning[1:], *content], True, 1) == len(reasoning) - 1
    assert count([*reasoning[:-1]], False, 1) == len(reasoning) - 1
    assert count([*reasoning, *content, *reasoning, *content], False, 2) == 2 * len(reasoning)
    assert count([*reasoning, *content, *reasoning, *content], False, 1) == len(reasoning)
    assert count([*reasoning, *content], False, 0) == 0
    assert count(content, False, 1) == 0
    assert Markers().count_reasoning_tokens(content, False, 0) == 0


@pytest.mark.parametrize("template", ["[THINK]", "other"])
def test_mistral_s_thoughts_are_marked_where_the_template_has_them(template: str) -> None:
    inner = load_tokenizer(BUNDLED_MODEL)._tokenizer
    tokens = ["[THINK]", "[/THINK]"]
    inner.add_tokens([AddedToken(text, special=True, normalized=False) for text in tokens])
    inner.chat_template = f"{{% if false %}}{template}{{% endif %}}"
    tokenizer = Tokenizer(TokenizerWrapper(inner), len(inner))
    markers = tokenizer.markers
    assert markers.can_think == (template == "[THINK]")
    answer = "[THINK]hm[/THINK]yes"
    detokenizer = Detokenizer(tokenizer, [])
    text = "".join(detokenizer.add(token) for token in tokenizer.encode(answer))
    assert text == (answer if markers.can_think else "hmyes")
    if markers.can_think:
        assert markers.think_start == Marker("[THINK]", (len(inner) - 2,))
