"""The bytes of all tokens of a tokenizer, kept on disk.

Reading the vocabulary of a large tokenizer takes most of a second, and its tokens never change.
"""

import hashlib
import json
import logging
import os
import re
import zlib
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from tokenizers import Tokenizer as Backend
from transformers.convert_slow_tokenizer import bytes_to_unicode

from reprise.config.atomic_files import remove_oldest, write_in_folder
from reprise.engine.text.tokenizer_reading import describe_backend

BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class VocabularyError(ValueError):
    """The bytes of a tokenizer's tokens are not known; the message says why."""


class TokenByteDecoder:
    """Decoder from token strings, such as "Ġthe" or "<0x41>", to the bytes that the tokens stand for.

    config: the tokenizer as the tokenizers library serializes it to JSON.
    Raises VocabularyError for a kind of tokenizer whose token strings cannot be decoded.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        model = config["model"]
        self._model_ids = read_model_ids(model)
        if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
            raise VocabularyError(f"its tokenizer marks parts of words ({model.get('type')})")
        self.unknown_id = self._find_unknown_id(model)
        self._replacements: list[tuple[str, str]] = []
        self._has_byte_fallback = bool(model.get("byte_fallback"))
        self._is_byte_level = False
        is_fused = False
        for decoder in read_decoders(config.get("decoder")):
            match decoder:
                case {"type": "ByteLevel"}:
                    self._is_byte_level = True
                case {"type": "Replace", "pattern": {"String": pattern}, "content": content}:
                    self._replacements.append((pattern, content))
                case {"type": "Metaspace"}:
                    self._replacements.append((decoder.get("replacement", "\u2581"), " "))
                case {"type": "ByteFallback"}:
                    self._has_byte_fallback = True
                case {"type": "Fuse"}:
                    is_fused = True
                # After Fuse, Strip works on the whole text and not on its tokens.
                case {"type": "Strip"} if is_fused:
                    pass
                case _:
                    raise VocabularyError(f"its tokenizer uses an unsupported decoder: {decoder.get('type')}")

    def is_byte(self, token_string: str) -> bool:
        """Return whether a token string is a byte written as `<0x41>`."""
        return self._has_byte_fallback and BYTE.fullmatch(token_string) is not None

    def decode(self, token_string: str, token: int) -> bytes:
        """Return the bytes of a token. token: its id."""
        # Added tokens are matched in the text exactly as they are written.
        if self._model_ids.get(token_string) != token:
            return token_string.encode()
        if self.is_byte(token_string):
            return bytes([int(token_string[3:5], 16)])
        if self._is_byte_level:
            # The library does the same with a token that is not byte-level throughout.
            return decode_byte_level(token_string) or token_string.encode()
        for pattern, content in self._replacements:
            token_string = token_string.replace(pattern, content)
        return token_string.encode()

    def _find_unknown_id(self, model: dict[str, Any]) -> int | None:
        if "unk_id" in model:
            unknown: int | None = model["unk_id"]
            return unknown
        return self._model_ids.get(model.get("unk_token"))


def decode_partial(token_string: str) -> bytes:
    """Return the bytes of a token that is only part of a character, such as "<0xE4>" or "âĢ".

    Only for a token whose own text contains U+FFFD. Returns no bytes if the token is U+FFFD itself.
    """
    if BYTE.fullmatch(token_string):
        return bytes([int(token_string[3:5], 16)])
    return decode_byte_level(token_string)


def decode_byte_level(token_string: str) -> bytes:
    """Return the bytes of a byte-level token; none if a character of it stands for no byte."""
    try:
        return token_string.translate(_TO_LATIN_1).encode("latin-1")
    except UnicodeEncodeError:
        return b""


def read_model_ids(model: dict[str, Any]) -> dict[Any, int]:
    """Return token string -> id of a serialized model. Added tokens may be missing."""
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        return vocab
    # A Unigram model has a list of token strings and scores.
    return {entry[0]: token for token, entry in enumerate(vocab)}


def read_decoders(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the decoders of a serialized tokenizer in order. Raises VocabularyError if there are none."""
    if decoder is None:
        raise VocabularyError("its tokenizer has no decoder")
    if decoder["type"] == "Sequence":
        return [part for inner in decoder["decoders"] for part in read_decoders(inner)]
    return [decoder]


# Latin-1 has one character for each byte. Characters that stand for no byte become one that it lacks.
_TO_LATIN_1 = dict.fromkeys(range(256), 0xFFFD)
_TO_LATIN_1 |= {ord(character): byte for byte, character in bytes_to_unicode().items()}


log = logging.getLogger("reprise.engine")

FORMAT = "2"
"""Changes whenever the file or what is computed for it does. Part of the files' names."""

Arrays = dict[str, NDArray[Any]]

_NAME = r"tokens-[0-9a-f]{40}\.safetensors"

MAX_KEPT = 8
"""Files to keep: those used last. One takes a few megabytes."""


@dataclass(frozen=True)
class Pieces(Sequence[bytes]):
    """Every token's bytes, sliced from one string on access.

    blob: the bytes of all tokens, joined. ends: the offset in blob at which each token ends, of type "q".
    """

    blob: bytes
    ends: "array[int]"

    @classmethod
    def of(cls, pieces: Sequence[bytes]) -> "Pieces":
        """Make it from a list of each token's bytes."""
        return cls(b"".join(pieces), array("q", accumulate(map(len, pieces))))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, token: Any) -> Any:
        if isinstance(token, slice):
            return self.cut()[token]
        start = self.ends[token - 1] if token else 0
        return self.blob[start : self.ends[token]]

    def cut(self) -> list[bytes]:
        """Return all tokens' bytes as a list. Slow."""
        return [self.blob[start:end] for start, end in pairwise([0, *self.ends])]


@dataclass(frozen=True, slots=True)
class TokenTable:
    """A tokenizer's vocabulary as bytes, with facts about it.

    fingerprint: a digest of the vocabulary, equal for two tokenizers exactly if their vocabularies are equal.
    longest_token: characters of the longest token string.
    pieces: each id's bytes, maybe part of a character; a control token's are its token string. Empty for an
        id without a token. No ids at all if fault is set.
    byte_fallback_ids: ids written as bytes (`<0x41>`).
    line_ends: ids whose bytes contain a line break.
    unknown_id: the id of unknown text, if there is one.
    fault: why the bytes of the tokens are not known; empty if they are.
    """

    fingerprint: str
    longest_token: int
    pieces: Pieces
    byte_fallback_ids: frozenset[int] = frozenset()
    line_ends: frozenset[int] = frozenset()
    unknown_id: int | None = None
    fault: str = ""


def read_table(backend: Backend, folder: Path | None, file_digest: str = "") -> TokenTable:
    """Return a tokenizer's table, from the folder or else computed and written there.

    folder: None to read and write no file. A file that is damaged or cannot be written is logged.
    file_digest: digest of the vocabulary's file; "" if it is not known.
    """
    if folder is None:
        return make_table(backend, backend.to_str())
    # Not the vocabulary alone: the bytes depend on the decoder and on what was added.
    text = f"{file_digest} {describe_backend(backend)}" if file_digest else backend.to_str()
    digest = hashlib.sha256(f"{FORMAT} {text}".encode()).hexdigest()[:40]
    path = folder / f"tokens-{digest}.safetensors"
    try:
        table = _read(path)
        with suppress(OSError):
            os.utime(path)
        return table
    except FileNotFoundError:
        pass
    except (OSError, SafetensorError, LookupError, ValueError) as fault:
        log.warning("cannot read the tokens in %s (%s); reading the vocabulary again", path, fault)
    table = make_table(backend, backend.to_str())
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
        return TokenTable(fingerprint, longest, Pieces.of([]), fault=str(fault))
    pieces = [b""] * (entries[-1][0] + 1)
    for token, token_string in entries:
        pieces[token] = decoder.decode(token_string, token)
    written_as_bytes = frozenset(token for token, token_string in entries if decoder.is_byte(token_string))
    line_ends = frozenset(token for token, piece in enumerate(pieces) if b"\n" in piece)
    return TokenTable(
        fingerprint, longest, Pieces.of(pieces), written_as_bytes, line_ends, decoder.unknown_id
    )


def _write(path: Path, table: TokenTable) -> None:
    arrays: Arrays = {
        "bytes": np.frombuffer(table.pieces.blob, np.uint8),
        "ends": np.array(table.pieces.ends),
        "byte_fallback_ids": np.array(sorted(table.byte_fallback_ids), np.int64),
        "line_ends": np.array(sorted(table.line_ends), np.int64),
    }
    facts = {
        "fingerprint": table.fingerprint,
        "longest_token": table.longest_token,
        "unknown_id": table.unknown_id,
    }
    metadata = {"facts": json.dumps(facts)}
    metadata["checksum"] = _checksum(arrays, metadata["facts"])
    try:
        write_in_folder(path, save(arrays, metadata), _NAME)
    except OSError as fault:
        log.warning("cannot write the tokens to %s (%s); the next start reads the vocabulary", path, fault)
    remove_oldest(path.parent, _NAME, MAX_KEPT)


def _read(path: Path) -> TokenTable:
    """Read a file. Raises FileNotFoundError, or OSError, SafetensorError, LookupError or ValueError."""
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata() or {}
        arrays: Arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    if metadata["checksum"] != _checksum(arrays, metadata["facts"]):
        raise ValueError("its checksum is wrong")
    facts = json.loads(metadata["facts"])
    pieces = Pieces(arrays["bytes"].tobytes(), array("q", arrays["ends"].tobytes()))
    fallback_ids, line_ends = (
        frozenset(arrays[name].tolist()) for name in ("byte_fallback_ids", "line_ends")
    )
    return TokenTable(
        facts["fingerprint"], facts["longest_token"], pieces, fallback_ids, line_ends, facts["unknown_id"]
    )


def _checksum(arrays: Arrays, facts: str) -> str:
    value = zlib.crc32(facts.encode())
    for name in sorted(arrays):
        value = zlib.crc32(arrays[name].tobytes(), value)
    return str(value)
