"""A tokenizer whose file is parsed once is the same as one that is loaded in the usual way."""

import json
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer
from tokenizers import Tokenizer as Backend
from transformers import GemmaTokenizer

from engine.model import tokenizer_reading
from engine.model.tokenizer_reading import read_once
from tests.engine.model import tokenizers_zoo as zoo

CLASSES = ("", "GemmaTokenizer", "Qwen2Tokenizer", "LlamaTokenizer", "CohereTokenizer", "GPT2Tokenizer")
ADDED = {"content": "<think>", "lstrip": True, "normalized": False, "rstrip": False, "single_word": False}


def write(folder: Path, kind: str, config: dict[str, Any]) -> None:
    """Write a tokenizer's files. kind: one of zoo.KINDS."""
    backend = zoo.make(kind).backend
    backend.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def describe(wrapped: Any) -> tuple[Any, ...]:
    """Return all that two equal tokenizers have in common."""
    own = wrapped._tokenizer
    apart = {"_tokenizer", "_detokenizer", "_vocab", "_merges"}
    facts = [
        {name: repr(value) for name, value in vars(one).items() if name not in apart}
        for one in (wrapped, own)
    ]
    return type(own), own.backend_tokenizer.to_str(), *facts


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the files that the tokenizers library parses from now on."""
    paths: list[str] = []

    def parse(path: str) -> Backend:
        paths.append(path)
        return Backend.from_file(path)

    monkeypatch.setattr(tokenizer_reading, "parse", parse)
    return paths


@pytest.mark.parametrize("tokenizer_class", CLASSES)
@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece-first"])
@pytest.mark.parametrize("lists_added", [False, True])
def test_the_tokenizer_is_the_same(
    kind: str, tokenizer_class: str, lists_added: bool, tmp_path: Path, parsed: list[str]
) -> None:
    last = zoo.make(kind).backend.get_vocab_size()
    config: dict[str, Any] = {"tokenizer_class": tokenizer_class} if tokenizer_class else {}
    config |= {"eos_token": "</s>", "extra_special_tokens": ["<|im_start|>"]}
    config |= {"added_tokens_decoder": {str(last): ADDED}} if lists_added else {}
    write(tmp_path, kind, config)
    usual = describe(load_tokenizer(tmp_path))
    assert parsed == []
    assert describe(read_once(lambda: load_tokenizer(tmp_path))) == usual
    assert len(parsed) == 1


def test_a_tokenizer_that_wants_its_vocabulary_itself_is_loaded_in_the_usual_way(tmp_path: Path) -> None:
    class Counting(GemmaTokenizer):
        """Counts the tokens of its vocabulary."""

        def __init__(self, vocab: Any = None, **options: Any) -> None:
            self.num_tokens = len(vocab)
            super().__init__(vocab, **options)

    write(tmp_path, "sentencepiece-first", {})
    assert read_once(lambda: Counting.from_pretrained(tmp_path)).num_tokens > 100
