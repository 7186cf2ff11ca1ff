"""The bytes of all tokens of a tokenizer, kept on disk.

Reading the vocabulary of a large tokenizer takes most of a second, and its tokens never change.
"""

import hashlib
import json
import logging
import zlib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from tokenizers import Tokenizer as Backend

from config.whole_file import remove_unfinished, write_whole
from engine.model.token_bytes import TokenByteDecoder, VocabularyError

log = logging.getLogger("reprise.engine")

FORMAT = "1"
"""Changes whenever the file or what is computed for it does. Part of the files' names."""

Arrays = dict[str, NDArray[Any]]

_NAME = r"tokens-[0-9a-f]{40}\.safetensors"


@dataclass(frozen=True, slots=True)
class TokenTable:
    """What is known of a tokenizer's vocabulary.

    fingerprint: a digest of it, equal for two tokenizers exactly if their vocabularies are equal.
    longest_token: characters of the longest token string.
    pieces: the bytes of each id, maybe part of a character; those of control tokens are their token strings.
        Empty for an id without a token. No ids at all if fault is set.
    byte_fallback_ids: ids written as bytes (`<0x41>`).
    unknown_id: the id of unknown text, if there is one.
    fault: why the bytes of the tokens are not known; empty if they are.
    """

    fingerprint: str
    longest_token: int
    pieces: list[bytes]
    byte_fallback_ids: frozenset[int] = frozenset()
    unknown_id: int | None = None
    fault: str = ""


def read_table(backend: Backend, folder: Path | None) -> TokenTable:
    """Return the table of a tokenizer: that in the folder, else a new one, which is then written there.

    folder: None to read and write no file. A file that is damaged or cannot be written is logged.
    """
    text = backend.to_str()
    if folder is None:
        return make_table(backend, text)
    # Not the vocabulary alone: the bytes depend on the decoder and on what was added.
    digest = hashlib.sha256(f"{FORMAT} {text}".encode()).hexdigest()[:40]
    path = folder / f"tokens-{digest}.safetensors"
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    except (OSError, SafetensorError, LookupError, ValueError) as fault:
        log.warning("cannot read the tokens in %s (%s); reading the vocabulary again", path, fault)
    table = make_table(backend, text)
    if not table.fault:
        _write(path, table)
    return table


def make_table(backend: Backend, text: str) -> TokenTable:
    """Compute the table of a tokenizer. text: the tokenizer as the library serializes it to JSON."""
    vocab = backend.get_vocab(with_added_tokens=True)
    entries = sorted(zip(vocab.values(), vocab, strict=True))
    fingerprint = hashlib.sha256(repr(entries).encode()).hexdigest()[:32]
    longest = max(map(len, vocab))
    try:
        decoder = TokenByteDecoder(json.loads(text))
    except VocabularyError as fault:
        return TokenTable(fingerprint, longest, [], fault=str(fault))
    pieces = [b""] * (entries[-1][0] + 1)
    for token, token_string in entries:
        pieces[token] = decoder.decode(token_string, token)
    written_as_bytes = frozenset(token for token, token_string in entries if decoder.is_byte(token_string))
    return TokenTable(fingerprint, longest, pieces, written_as_bytes, decoder.unknown_id)


def _write(path: Path, table: TokenTable) -> None:
    arrays: Arrays = {
        "bytes": np.frombuffer(b"".join(table.pieces), np.uint8),
        "ends": np.cumsum([len(piece) for piece in table.pieces], dtype=np.int64),
        "byte_fallback_ids": np.array(sorted(table.byte_fallback_ids), np.int64),
    }
    facts = {
        "fingerprint": table.fingerprint,
        "longest_token": table.longest_token,
        "unknown_id": table.unknown_id,
    }
    metadata = {"facts": json.dumps(facts)}
    metadata["checksum"] = _checksum(arrays, metadata["facts"])
    remove_unfinished(path.parent, _NAME)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, save(arrays, metadata))
    except OSError as fault:
        log.warning("cannot write the tokens to %s (%s); the next start reads the vocabulary", path, fault)


def _read(path: Path) -> TokenTable:
    """Read a file. Raises FileNotFoundError, or OSError, SafetensorError, LookupError or ValueError."""
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata() or {}
        arrays: Arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    if metadata["checksum"] != _checksum(arrays, metadata["facts"]):
        raise ValueError("its checksum is wrong")
    facts = json.loads(metadata["facts"])
    blob = arrays["bytes"].tobytes()
    pieces = [blob[start:end] for start, end in pairwise([0, *arrays["ends"].tolist()])]
    fallback_ids = frozenset(arrays["byte_fallback_ids"].tolist())
    return TokenTable(facts["fingerprint"], facts["longest_token"], pieces, fallback_ids, facts["unknown_id"])


def _checksum(arrays: Arrays, facts: str) -> str:
    value = zlib.crc32(facts.encode())
    for name in sorted(arrays):
        value = zlib.crc32(arrays[name].tobytes(), value)
    return str(value)
