"""A tokenizer whose file is parsed once is the same as one that is loaded in the usual way."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, normalizers
from transformers import GemmaTokenizer

from reprise.engine.text import tokenizer_reading
from reprise.engine.text.tokenizer_reading import describe_backend, read_once
from reprise.engine.text.vocabulary import copy_backend
from tests.engine.text import tokenizers_zoo as zoo

PAIRS = [
    *(("byte-level", name) for name in ("", "Qwen2Tokenizer", "LlamaTokenizer", "GPT2Tokenizer")),
    *(("sentencepiece-first", name) for name in ("", "GemmaTokenizer", "LlamaTokenizer", "CohereTokenizer")),
]
"""Kinds of zoo.KINDS, and classes that make models of their own for them."""
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


@pytest.mark.parametrize(("kind", "tokenizer_class"), PAIRS)
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
    wrapped, digest = read_once(lambda: load_tokenizer(tmp_path))
    assert describe(wrapped) == usual
    assert len(parsed) == 1
    assert digest == hashlib.sha256((tmp_path / "tokenizer.json").read_bytes()).hexdigest()


def test_a_tokenizer_that_wants_its_vocabulary_itself_is_loaded_in_the_usual_way(tmp_path: Path) -> None:
    class Counting(GemmaTokenizer):
        """Counts the tokens of its vocabulary."""

        def __init__(self, vocab: Any = None, **options: Any) -> None:
            self.num_tokens = len(vocab)
            super().__init__(vocab, **options)

    write(tmp_path, "sentencepiece-first", {})
    tokenizer, digest = read_once(lambda: Counting.from_pretrained(tmp_path))
    assert tokenizer.num_tokens > 100
    assert digest == ""


@pytest.mark.parametrize("one", zoo.KINDS)
def test_a_description_tells_tokenizers_with_one_file_apart(one: str) -> None:
    backend = copy_backend(zoo.make(one).backend)
    seen = {describe_backend(backend), describe_backend(copy_backend(backend))}
    assert len(seen) == 1
    backend.add_tokens(["<another>"])
    seen.add(describe_backend(backend))
    backend.decoder = decoders.WordPiece("@@")
    seen.add(describe_backend(backend))
    backend.normalizer = normalizers.Replace("a", "b")
    seen.add(describe_backend(backend))
    assert len(seen) == 4
