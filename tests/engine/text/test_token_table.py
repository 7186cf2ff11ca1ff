"""The table of tokens is the same from disk as from the tokenizer, and damage to its file costs only time."""

import logging
from pathlib import Path

import llguidance.hf
import pytest
from tokenizers import Tokenizer as Backend

from reprise.engine.text import token_table
from reprise.engine.text.token_table import TokenTable, decode_partial, make_table, read_table
from reprise.engine.text.vocabulary import copy_backend
from tests.engine.support import make_tokenizer
from tests.engine.text import tokenizers_zoo as zoo


def fresh(backend: Backend) -> TokenTable:
    return make_table(backend, backend.to_str())


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[TokenTable]:
    """Return a list of the tables that are computed from now on."""
    tables: list[TokenTable] = []

    def watched(backend: Backend, text: str) -> TokenTable:
        tables.append(make_table(backend, text))
        return tables[-1]

    monkeypatch.setattr(token_table, "make_table", watched)
    return tables


@pytest.mark.parametrize("kind", zoo.KINDS)
def test_the_table_on_disk_equals_the_computed_one(kind: str, tmp_path: Path, made: list[TokenTable]) -> None:
    backend = zoo.make(kind).backend
    assert read_table(backend, tmp_path / "new") == fresh(backend)
    assert read_table(backend, tmp_path / "new") == fresh(backend)
    assert len(made) == 1
    (file,) = (tmp_path / "new").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_each_tokenizer_has_a_file_of_its_own(tmp_path: Path, made: list[TokenTable]) -> None:
    # The same vocabulary, but another token is added.
    kinds = ["byte-level", "byte-level-spaces", "sentencepiece-first", "sentencepiece-never"]
    for kind in kinds * 2:
        backend = zoo.make(kind).backend
        assert read_table(backend, tmp_path) == fresh(backend)
    assert len(made) == len(list(tmp_path.iterdir())) == len(kinds)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:0],
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
        lambda data: data.replace(b"longest_token", b"longest_tokem"),
        lambda data: data.replace(b"checksum", b"checksun"),
        lambda data: b"\xff" * len(data),
    ],
    ids=["empty", "cut", "half", "flipped", "facts", "unchecked", "foreign"],
)
def test_a_damaged_file_is_replaced_and_logged(
    damage, tmp_path: Path, made: list[TokenTable], caplog: pytest.LogCaptureFixture
) -> None:
    backend = make_tokenizer().backend
    expected = read_table(backend, tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert file.read_bytes() != whole
    with caplog.at_level(logging.WARNING):
        assert read_table(backend, tmp_path) == expected
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith(f"cannot read the tokens in {file}")
    assert read_table(backend, tmp_path) == expected
    assert len(made) == 2


def test_a_folder_that_cannot_be_written_costs_only_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = make_tokenizer().backend
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        assert read_table(backend, tmp_path / "file" / "folder") == fresh(backend)
    assert any("cannot write the tokens" in record.getMessage() for record in caplog.records)


def test_tokens_of_unknown_bytes_are_not_kept(tmp_path: Path) -> None:
    wordpiece = zoo.wrap(zoo.wordpiece(), eos_token="[SEP]")
    table = read_table(wordpiece.backend, tmp_path)
    assert "marks parts of words" in table.fault
    assert not list(tmp_path.iterdir())
    assert wordpiece.piece(wordpiece.backend.token_to_id("the")) == b"the"
    assert wordpiece.longest_token == max(map(len, wordpiece.wrapped.get_vocab()))


# llguidance does not know unigram tokenizers without bytes.
@pytest.mark.parametrize("kind", [kind for kind in zoo.KINDS if kind != "unigram"])
def test_a_token_has_the_bytes_that_llguidance_reads(kind: str) -> None:
    tokenizer = zoo.make(kind)
    backend = tokenizer.backend
    known = llguidance.hf.from_tokenizer(tokenizer.wrapped._tokenizer, n_vocab=tokenizer.vocab_size)
    for token in range(tokenizer.vocab_size):
        # It reserves the byte 0xFF and leaves it out.
        expected = bytes(known.decode_bytes([token])) or decode_partial(backend.id_to_token(token))
        assert tokenizer.piece(token) == expected, token


@pytest.mark.parametrize("kind", zoo.KINDS)
def test_lines_end_where_the_decoded_text_breaks(kind: str) -> None:
    tokenizer = zoo.make(kind)
    texts = tokenizer.backend.decode_batch([[token] for token in range(tokenizer.vocab_size)])
    assert tokenizer.line_ends == {token for token, text in enumerate(texts) if "\n" in text}


@pytest.mark.parametrize("kind", zoo.KINDS)
def test_a_copy_of_a_tokenizer_encodes_and_decodes_the_same(kind: str) -> None:
    backend = zoo.make(kind).backend
    copy = copy_backend(backend)
    assert repr(copy.get_added_tokens_decoder()) == repr(backend.get_added_tokens_decoder())
    assert copy.get_vocab() == backend.get_vocab()
    for text in (*zoo.ENGLISH, *zoo.POLISH, "<think> <|end|></s>   "):
        for adds_specials in (True, False):
            expected = backend.encode(text, add_special_tokens=adds_specials).ids
            assert copy.encode(text, add_special_tokens=adds_specials).ids == expected
        assert copy.decode(expected) == backend.decode(expected)
    copy.encode_special_tokens = not backend.encode_special_tokens
    assert backend.encode_special_tokens != copy.encode_special_tokens
