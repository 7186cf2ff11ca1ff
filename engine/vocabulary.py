"""A vocabulary by the bytes of its tokens, and text to tokens as a model says it in mid-text.

Translating between vocabularies rests on bytes and never on what a tokenizer decodes: decoders strip,
clean up and normalise. So whatever is encoded here is compared, byte for byte, with what was asked for.
"""

import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as Backend

from engine.tokenizer import Tokenizer

ANCHORS = ("\n", ".", "a", "0", "\u4e2d")
"""What text is encoded behind: one of them does not melt into what follows."""
SPACE_ANCHORS = ("a", ".", "0", "\n", "\u4e2d")
"""The same for text that begins with white space, which a line break would take for its own."""

PROBES = (
    "word",
    " word",
    "  two  spaces  ",
    "Upper AND lower",
    "\n",
    "one\ntwo\n\n\nfour\r\n",
    "if x:\n    y = [1, 22, 333]\n\treturn -0.5e-7\n",
    "za\u017c\u00f3\u0142\u0107 g\u0119\u015bl\u0105 ja\u017a\u0144",
    "cafe\u0301 \ufb01n \uff21",
    "\u4e2d\u6587 \U0001f600 \u201equotes\u201d \u2026",
    '{"key": "it\'s"}</a>',
)
"""Texts that an exact tokenizer gives back: case, spaces, lines, characters of one to four bytes."""

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class VocabularyError(ValueError):
    """The bytes of a tokenizer's tokens are not known; the message says why."""


class Vocabulary:
    """One model's tokens by their bytes. On the engine's thread only.

    Raises VocabularyError if the kind of tokenizer says nothing certain about bytes, as WordPiece.
    """

    size: int
    """Ids of the model; those of its tokenizer may be fewer or more, and only these count."""
    pieces: list[bytes]
    """(size,) the bytes of every id: parts of characters too, none for specials and ids without a token."""
    special: frozenset[int]
    """Ids that steer and are no text."""
    spellings: dict[int, str]
    """How specials are written."""
    byte_tokens: dict[int, int]
    """Byte -> an id that is this very byte. Empty or partial where a vocabulary has no such tokens."""
    byte_spelled: frozenset[int]
    """Ids written as bytes (`<0x41>`), which stand beside tokens of the same text."""
    eos: tuple[int, ...]
    """Ids that end an answer, the tokenizer's own first."""
    bos: int | None
    """The id that begins a text, if there is one."""
    opening: tuple[int, ...]
    """Ids that the tokenizer puts before every text; often none, or the beginning of sequence."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.size = tokenizer.vocab_size
        try:
            written = json.loads(tokenizer.backend.to_str())
        except AttributeError as fault:
            raise VocabularyError("its tokenizer has no form in the tokenizers library") from fault
        if written["model"].get("dropout"):
            written["model"]["dropout"] = None
        self._backend = Backend.from_str(json.dumps(written))
        self._backend.no_padding()
        self._backend.no_truncation()
        self.opening = self._find_opening()
        # Text that is spelled like a special is text.
        self._backend.encode_special_tokens = True

        speller = Speller(written)
        added = {entry["id"]: entry for entry in written["added_tokens"]}
        wrapped = tokenizer.wrapped
        first_eos = wrapped.eos_token_id
        self.eos = tuple(sorted(self._ids(tokenizer.eos_ids), key=lambda token: (token != first_eos, token)))
        self.bos = next(iter(self._ids([wrapped.bos_token_id])), None)
        special = {token for token, entry in added.items() if entry["special"]}
        special |= {token for token in (self.bos, speller.unknown) if token is not None}
        self.pieces = [b""] * self.size
        self.spellings = {}
        byte_spelled = set()
        for spelling, token in self._backend.get_vocab(with_added_tokens=True).items():
            if token >= self.size:
                continue
            piece = speller.piece(spelling, token)
            if token in special or (token in self.eos and (token in added or not piece.isspace())):
                self.spellings[token] = spelling
            else:
                self.pieces[token] = piece
                if speller.is_byte(spelling):
                    byte_spelled.add(token)
        self.special = frozenset(self.spellings)
        self.byte_spelled = frozenset(byte_spelled)
        single = [token for token, piece in enumerate(self.pieces) if len(piece) == 1]
        single.sort(key=lambda token: (token not in byte_spelled, -token))
        self.byte_tokens = {self.pieces[token][0]: token for token in reversed(single)}

    @cached_property
    def is_exact(self) -> bool:
        """Whether text of many kinds is given back as it was; where not, much of a draft is lost."""
        return all(self.encode(probe.encode()) is not None for probe in PROBES)

    @property
    def start(self) -> int:
        """An id to feed where there is no text yet."""
        return next(iter((*self.opening, *self._ids([self.bos]), *self.eos)), 0)

    def text(self, ids: Iterable[int]) -> bytes:
        """The bytes of ids, one after another; ids that the vocabulary does not have are none."""
        pieces, size = self.pieces, self.size
        return b"".join([pieces[token] for token in ids if token < size])

    def encode(self, text: bytes) -> list[int] | None:
        """The ids of text as a model says it in mid-text: their bytes are exactly text.

        None if the tokenizer does not give the text back as it is: one that normalises, that does not know
        a character, text that is not UTF-8. Never raises.
        """
        if not text:
            return []
        try:
            readable = text.decode()
        except UnicodeDecodeError:
            return None
        for anchor in self._plain + (SPACE_ANCHORS if readable[0].isspace() else ANCHORS):
            ids = self._encode_behind(anchor, readable, text)
            if ids is not None:
                return ids
        return None

    def encode_bytes(self, data: bytes) -> list[int] | None:
        """The ids of any bytes: characters as `encode` has them, parts of characters as bytes.

        None where there are no tokens for them. Never raises.
        """
        ids: list[int] = []
        for part, is_text in split_characters(data):
            more = self.encode(part) if is_text else None
            if more is None:
                known = [self.byte_tokens.get(byte) for byte in part]
                more = [token for token in known if token is not None]
                if len(more) < len(part):
                    return None
            ids += more
        return ids

    def _encode_behind(self, anchor: str, readable: str, text: bytes) -> list[int] | None:
        ids = self._ids_of(anchor + readable)
        begin, missing = len(ids), len(text)
        while missing > 0 and begin > 0:
            begin -= 1
            if ids[begin] >= self.size or not (piece := self.pieces[ids[begin]]):
                return None
            missing -= len(piece)
        found = ids[begin:]
        return found if not missing and self.text(found) == text else None

    @cached_property
    def _plain(self) -> tuple[str, ...]:
        """No anchor, where text needs none."""
        # A tokenizer that puts a space before all text would say the first word as another one.
        return ("",) if self.text(self._ids_of("a")) == b"a" else ()

    def _ids_of(self, text: str) -> list[int]:
        """What the tokenizer makes of text, whatever it is; nothing where it raises."""
        try:
            return list(self._backend.encode(text, add_special_tokens=False).ids)
        # A tokenizer may raise anything, as for a character that it has no unknown token for.
        except Exception:
            return []

    def _ids(self, tokens: Iterable[int | None]) -> Iterator[int]:
        return (token for token in tokens if token is not None and token < self.size)

    def _find_opening(self) -> tuple[int, ...]:
        with_specials, without = (
            self._backend.encode("a", add_special_tokens=adds).ids for adds in (True, False)
        )
        for at in range(len(with_specials) - len(without) + 1):
            if with_specials[at : at + len(without)] == without:
                return tuple(self._ids(with_specials[:at]))
        return ()


class Speller:
    """Reads the bytes of a token from how a tokenizer's vocabulary spells it.

    written: the tokenizer as the tokenizers library writes it. Raises VocabularyError for unknown kinds.
    """

    def __init__(self, written: dict[str, Any]) -> None:
        model = written["model"]
        self._model_ids = read_model_ids(model)
        if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
            raise VocabularyError(f"its tokenizer marks parts of words ({model.get('type')})")
        self.unknown = self._find_unknown(model)
        self._replaced: list[tuple[str, str]] = []
        self._has_bytes = bool(model.get("byte_fallback"))
        self._byte_level = False
        is_fused = False
        for part in read_decoders(written.get("decoder")):
            match part:
                case {"type": "ByteLevel"}:
                    self._byte_level = True
                case {"type": "Replace", "pattern": {"String": pattern}, "content": content}:
                    self._replaced.append((pattern, content))
                case {"type": "Metaspace"}:
                    self._replaced.append((part.get("replacement", "\u2581"), " "))
                case {"type": "ByteFallback"}:
                    self._has_bytes = True
                case {"type": "Fuse"}:
                    is_fused = True
                # Behind a fuse it strips the whole text, which is none of the tokens' business.
                case {"type": "Strip"} if is_fused:
                    pass
                case _:
                    raise VocabularyError(f"its tokenizer decodes by a {part.get('type')}")

    def is_byte(self, spelling: str) -> bool:
        """Whether a token is written as a byte."""
        return self._has_bytes and BYTE.fullmatch(spelling) is not None

    def piece(self, spelling: str, token: int) -> bytes:
        """The bytes of a token."""
        # Added tokens are found in the text as they are written.
        if self._model_ids.get(spelling) != token:
            return spelling.encode()
        if self.is_byte(spelling):
            return bytes([int(spelling[3:5], 16)])
        if self._byte_level:
            known = [BYTE_LEVEL.get(character) for character in spelling]
            # So does the library with a token that is not all bytes.
            return spelling.encode() if None in known else bytes(byte for byte in known if byte is not None)
        for pattern, content in self._replaced:
            spelling = spelling.replace(pattern, content)
        return spelling.encode()

    def _find_unknown(self, model: dict[str, Any]) -> int | None:
        if "unk_id" in model:
            return model["unk_id"]
        return self._model_ids.get(model.get("unk_token"))


def read_model_ids(model: dict[str, Any]) -> dict[Any, int]:
    """Spelling -> id of a written model; added tokens may not be among them."""
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        return vocab
    # A Unigram's is a list of spellings and scores.
    return {entry[0]: token for token, entry in enumerate(vocab)}


def read_decoders(written: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The decoders of a written tokenizer, one after another. Raises VocabularyError if there are none."""
    if written is None:
        raise VocabularyError("its tokenizer has no decoder")
    if written["type"] == "Sequence":
        return [part for inner in written["decoders"] for part in read_decoders(inner)]
    return [written]


def split_characters(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """Cut bytes into runs that are UTF-8 and runs that are not; yields each with whether it is."""
    at = 0
    while at < len(data):
        try:
            data[at:].decode()
        except UnicodeDecodeError as fault:
            if fault.start:
                yield data[at : at + fault.start], True
            yield data[at + fault.start : at + fault.end], False
            at += fault.end
        else:
            yield data[at:], True
            return


def whole_characters(data: bytes) -> int:
    """How many leading bytes are left if an incomplete character at the end is cut off.

    Bytes that no later ones can make a character stay where they are.
    """
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            width = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if back < width else len(data)
        if byte < 0x80:
            break
    return len(data)


def make_byte_level() -> dict[str, int]:
    """Character -> byte, as byte-level vocabularies write bytes. Source: GPT-2's `bytes_to_unicode`."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {chr(byte): byte for byte in shown}
    return table | {chr(256 + at): byte for at, byte in enumerate(hidden)}


BYTE_LEVEL = make_byte_level()
