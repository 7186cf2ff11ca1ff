"""A real vocabulary of 129,280 tokens: text in and out, grammars, and steps that never walk through it."""

import copy
import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import llguidance.hf
import pytest
from llguidance import LLMatcher
from mlx_lm import tokenizer_utils
from tokenizers import Tokenizer as Backend

from reprise.drafters.suffix import SuffixDrafter
from reprise.engine.interface.request import GenerationRequest, Grammar, Sampling
from reprise.engine.model.loading import LoadedModel, LoadOptions, load_model
from reprise.engine.sampling import grammar
from reprise.engine.sampling.grammar import Grammars
from reprise.engine.speculative.proposers import DraftSources
from reprise.engine.speculative.translation import Translation
from reprise.engine.text import token_table, tokenizer_reading
from reprise.engine.text.token_table import make_table
from reprise.engine.text.vocabulary import Vocabulary
from tests.drafters.fakes import scored
from tests.engine.driven import Driven
from tests.engine.support import oracle
from tests.engine.text.real_vocabulary import SIZE, write_real_model

TEXTS = (
    "The quick brown fox jumps over the lazy dog.\n\n\tdef f(x):\n    return x + 1  # 23.5\r\n",
    "Zażółć gęślą jaźń; 中文字符「引號」 😀👩‍👩‍👧 עברית \u00a0\u200b end ",
    '{"key": [1, 2, {"nested": "it\'s"}], "<think>": "<|EOT|>"}',
)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "count": {"enum": [7, 42]}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
MAX_LINES = SIZE // 10
"""Lines of Python that a step may run: far fewer than one for each token of the vocabulary."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("real")
    write_real_model(path)
    return path


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    return load_model(str(folder), "real", None, options=LoadOptions(cache_folder=folder / "cache"))


@pytest.fixture(scope="module")
def grammars(loaded: LoadedModel) -> Grammars:
    return Grammars(loaded.tokenizer)


def test_the_next_start_reads_the_tables_and_not_the_vocabulary(
    folder: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = loaded.tokenizer.backend
    first = loaded.tokenizer.table
    assert first == make_table(backend, backend.to_str())
    monkeypatch.setattr(token_table, "make_table", None)
    again = load_model(str(folder), "real", None, options=LoadOptions(cache_folder=folder / "cache"))
    assert again.tokenizer.table == first
    texts = backend.decode_batch([[token] for token in range(SIZE)])
    assert again.tokenizer.line_ends == {token for token, text in enumerate(texts) if "\n" in text}


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_comes_back(loaded: LoadedModel, text: str) -> None:
    tokenizer = loaded.tokenizer
    tokens = tokenizer.encode(text)
    assert b"".join(map(tokenizer.piece, tokens)).decode() == text
    assert tokenizer.decode(tokens) == tokenizer.backend.decode(tokens, skip_special_tokens=False) == text
    vocabulary = Vocabulary(tokenizer)
    assert vocabulary.is_exact
    ids = vocabulary.encode(text.encode())
    assert ids is not None
    assert vocabulary.to_bytes(ids) == text.encode()


def test_grammars_know_the_same_tokens_as_with_llguidances_own_reading(
    loaded: LoadedModel, grammars: Grammars
) -> None:
    tokenizer = loaded.tokenizer
    known = llguidance.hf.from_tokenizer(tokenizer.wrapped._tokenizer, SIZE, sorted(tokenizer.eos_ids))
    ours = grammars.vocabulary
    assert (ours.vocab_size, ours.eos_tokens, ours.is_canonical) == (
        known.vocab_size,
        known.eos_tokens,
        known.is_canonical,
    )
    for token in range(SIZE):
        assert ours.decode_bytes([token]) == known.decode_bytes([token]), token
        assert ours.is_special_token(token) == known.is_special_token(token), token
    for text in TEXTS[:2]:
        assert ours.tokenize_str(text) == known.tokenize_str(text)
    written = LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA))
    matchers = [LLMatcher(vocabulary, written) for vocabulary in (ours, known)]
    for token in ours.tokenize_str('{"name":"Łódź 中","count":42}'):
        masks = [matcher.compute_bitmask() for matcher in matchers]
        assert masks[0] == masks[1]
        assert matchers[0].compute_ff_tokens() == matchers[1].compute_ff_tokens()
        assert all(matcher.consume_token(token) for matcher in matchers)
    assert all(matcher.is_accepting() for matcher in matchers)


def ask_for_everything(loaded: LoadedModel, grammar: Grammar | None = None) -> list[GenerationRequest]:
    """Make requests that need all that a step may do with logits and text, some of them with the grammar."""
    prompt = tuple(loaded.tokenizer.encode(TEXTS[0] * 2))
    greedy = Sampling(seed=1, temperature=0.0)
    adjusted = Sampling(
        seed=2, temperature=0.9, top_k=40, top_p=0.9, presence_penalty=0.5, repetition_penalty=1.1,
        logit_bias=((7, 1.5), (SIZE - 1, -100.0)),
    )  # fmt: skip
    base = GenerationRequest("plain", prompt, 24, greedy, ())
    return [
        base,
        dataclasses.replace(base, id="adjusted", sampling=adjusted, stop=("never in any answer",)),
        dataclasses.replace(base, id="logprobs", top_logprobs=5),
        dataclasses.replace(base, id="grammar", grammar=grammar, max_tokens=60),
    ]


def test_answers_equal_the_plain_loop_and_their_text_the_tokenizers_own(loaded: LoadedModel) -> None:
    driven = Driven(
        loaded, lambda _: DraftSources({"ngram-simple": SuffixDrafter(0, name="ngram-simple")}, scored(1.0))
    )
    requests = ask_for_everything(loaded, Grammar("json_schema", json.dumps(SCHEMA)))
    answers = {one.id: driven.ask(one) for one in requests}
    driven.finish()
    decode = loaded.tokenizer.backend.decode
    finished = {name: list(answer.finished().tokens) for name, answer in answers.items()}
    for name, tokens in finished.items():
        ended = tokens[:-1] if tokens[-1] in loaded.tokenizer.eos_ids else tokens
        assert answers[name].text == decode(ended, skip_special_tokens=True), name
    assert finished["plain"] == finished["logprobs"] == oracle(loaded, requests[0])
    written = json.loads(answers["grammar"].text)
    assert set(written) == {"name", "count"}


@contextmanager
def counting_lines(leaving_out: str = "") -> Iterator[list[int]]:
    """Count the lines of Python that run, each round of a loop or comprehension as one.

    leaving_out: a file whose lines are not counted.
    """
    lines = [0]

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename == leaving_out:
            return None
        lines[0] += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)


def test_no_step_walks_through_the_vocabulary(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with counting_lines() as lines:
        assert [at for at in range(SIZE) if at < 0] == []
    assert lines[0] >= SIZE
    driven = Driven(
        loaded, lambda _: DraftSources({"ngram-simple": SuffixDrafter(0, name="ngram-simple")}, scored(1.0))
    )
    driven.grammars.compile(asked := Grammar("json_schema", json.dumps(SCHEMA)))
    # What reads a whole vocabulary without a line of Python for each token.
    monkeypatch.setattr(llguidance.hf, "from_tokenizer", None)
    monkeypatch.setattr(token_table, "read_table", None)
    monkeypatch.setattr(type(loaded.tokenizer.wrapped._tokenizer), "get_vocab", None)
    with counting_lines() as lines:
        for one in ask_for_everything(loaded, asked):
            driven.ask(one)
    assert lines[0] < MAX_LINES
    most = 0
    while driven.worker.has_work:
        with counting_lines() as lines:
            driven.worker.step()
        most = max(most, lines[0])
    assert all(answer.finished().tokens for answer in driven.answers.values())
    assert 100 < most < MAX_LINES


def test_a_start_walks_through_no_vocabulary(
    folder: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = []

    def parse(path: str) -> Backend:
        parsed.append(Path(path).name)
        return Backend.from_file(path)

    monkeypatch.setattr(tokenizer_reading, "parse", parse)
    monkeypatch.setattr(tokenizer_utils.PreTrainedTokenizerFast, "get_vocab", None)
    monkeypatch.setattr(grammar, "LLTokenizer", None)
    # transformers copies its arguments, among them the 820 added tokens.
    with counting_lines(copy.__file__) as lines:
        again = load_model(str(folder), "real", None, options=LoadOptions(cache_folder=folder / "cache"))
        assert again.tokenizer.line_ends
        Grammars(again.tokenizer)
        Translation.between(again.tokenizer, loaded.tokenizer, "auto", 8)
    assert parsed == ["tokenizer.json"]
    assert lines[0] < SIZE


def test_the_vocabulary_for_grammars_is_made_once_in_advance_or_when_needed(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    make = grammar._make_vocabulary
    monkeypatch.setattr(grammar, "_make_vocabulary", lambda tokenizer: made.append(1) or make(tokenizer))
    asked = Grammar("json_schema", json.dumps(SCHEMA))
    at_once, in_advance = Grammars(loaded.tokenizer), Grammars(loaded.tokenizer)
    masks = [at_once.matcher(asked).masks()[0]]
    assert len(made) == 1
    assert at_once.prepare()
    assert not at_once.prepare()
    assert in_advance.prepare()
    assert in_advance.prepare()
    assert not in_advance.prepare()
    assert len(made) == 2
    masks += [grammars.matcher(replaced(asked)).masks()[0] for grammars in (at_once, in_advance)]
    assert len(made) == 2
    assert all((mask == masks[0]).all() for mask in masks)


def replaced(asked: Grammar) -> Grammar:
    """Return a grammar of the same meaning that is compiled anew."""
    return dataclasses.replace(asked, text=asked.text + " ")
