"""A model that can fill in text is recognized by its vocabulary."""

import pytest

from reprise.engine.text.markers import find_fim
from tests.engine.text.test_call_formats import make

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|file_sep|>", "<|repo_name|>")
GEMMA = (*QWEN[:3], "<|file_separator|>")
STARCODER = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<file_sep>")
DEEPSEEK = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")
LLAMA = ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>")


@pytest.mark.parametrize(
    ("special", "file"),
    [(QWEN, "<|file_sep|>"), (GEMMA, None), (STARCODER, "<file_sep>"), (DEEPSEEK, None), (LLAMA, None)],
)
def test_the_tokens_of_a_family_are_found(special, file):
    ids = {text: number for number, text in enumerate(special, 100)}
    found = find_fim(ids.get)
    assert (found.prefix, found.suffix, found.middle) == (100, 101, 102)
    assert found.file == ids.get(file)
    assert sorted(found.ends) == sorted(ids.values())
    assert not found.is_suffix_first


def test_codestral_has_the_suffix_first_and_no_middle():
    found = find_fim({"[PREFIX]": 1, "[SUFFIX]": 2}.get)
    assert (found.prefix, found.suffix, found.middle, found.is_suffix_first) == (1, 2, None, True)


@pytest.mark.parametrize("some", [(), QWEN[:2], ("[PREFIX]",), LLAMA[:1]])
def test_a_vocabulary_with_too_few_of_them_has_none(some):
    assert find_fim(dict.fromkeys(some, 1).get) is None


def test_a_real_tokenizer_is_asked():
    assert make().fim is None
    tokenizer = make(QWEN)
    assert [tokenizer.encode(text)[0] for text in QWEN[:3]] == [
        tokenizer.fim.prefix,
        tokenizer.fim.suffix,
        tokenizer.fim.middle,
    ]
