"""A vocabulary by its tokens' bytes, and exact encoding of text that continues other text.

Translation between vocabularies relies on bytes, never on a tokenizer's decoder, which may strip, clean up
and normalize. So everything encoded here is compared with the input byte for byte.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache

from reprise.engine.text.encoding import NO_BOUNDARIES, copy_backend, find_ids, make_word_boundary_pattern
from reprise.engine.text.token_table import VocabularyError as VocabularyError
from reprise.engine.text.tokenizer import Tokenizer

ANCHORS = ("\n", ".", "a", "0", "中")
"""Strings put in front of text to encode it as a continuation. At least one does not merge with the text."""

SPACE_ANCHORS = ("a", ".", "0", "\n", "中")
"""Anchors for text that begins with whitespace, which merges with a line break in front of it."""

PROBES = (
    "word",
    " word",
    "  two  spaces  ",
    "Upper AND lower",
    "\n",
    "one\ntwo\n\n\nfour\r\n",
    "if x:\n    y = [1, 22, 333]\n\treturn -0.5e-7\n",
    "zażółć gęślą jaźń",
    "中文 😀 „quotes” …",
    '{"key": "it\'s"}</a>',
)
"""Texts that an exact tokenizer reproduces: case, spaces, lines, characters of one to four bytes."""

MAX_CACHED_WORDS = 8192
MAX_CACHED_WORD_BYTES = 64

WORD = re.compile(r"\s*\S+|\s+")
# Python's surrogateescape maps bytes that are not UTF-8 to U+DC80 to U+DCFF.
RUN = re.compile("[\udc80-\udcff]+|[^\udc80-\udcff]+")


class Vocabulary:
    """One model's tokens by their bytes. Any thread may use it.

    Raises VocabularyError if the bytes of the tokens are not known for certain, as with WordPiece.
    """

    size: int
    """Number of the model's ids. The tokenizer may have fewer or more; ids from size on are ignored."""
    pieces: list[bytes]
    """(size,) the bytes of each id, maybe part of a character; empty for specials and ids without a token."""
    special: frozenset[int]
    """Ids of control tokens, which are not text."""
    special_strings: dict[int, str]
    """Special id -> its token string."""
    byte_tokens: dict[int, int]
    """Byte -> an id of that single byte. Empty or partial if a vocabulary has no such tokens."""
    byte_fallback_ids: frozenset[int]
    """Ids written as bytes (`<0x41>`); another id may be ordinary text of the same byte."""
    eos: tuple[int, ...]
    """Ids that end an answer, the tokenizer's own first."""
    bos: int | None
    """The beginning-of-sequence id, if there is one."""
    opening: tuple[int, ...]
    """Ids that the tokenizer puts in front of every text: often none, or the beginning-of-sequence id."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.size = tokenizer.vocab_size
        backend, table = tokenizer.backend, tokenizer.table
        if table.fault:
            raise VocabularyError(table.fault)
        self._backend = copy_backend(backend)
        self.opening = self._find_opening()
        # Text that reads like a special token is still text.
        self._backend.encode_special_tokens = True

        wrapped = tokenizer.wrapped
        first_eos = wrapped.eos_token_id
        self.eos = tuple(sorted(self._ids(tokenizer.eos_ids), key=lambda token: (token != first_eos, token)))
        self.bos = next(iter(self._ids([wrapped.bos_token_id])), None)
        self.pieces = table.pieces[: self.size]
        self.pieces += [b""] * (self.size - len(self.pieces))
        added = backend.get_added_tokens_decoder()
        special = {token for token, entry in added.items() if entry.special}
        special.update(token for token in (self.bos, table.unknown_id) if token is not None)
        special.update(token for token in self.eos if token in added or not self.pieces[token].isspace())
        self.special_strings = {}
        for token in sorted(self._ids(special)):
            if token_string := backend.id_to_token(token):
                self.special_strings[token] = token_string
                self.pieces[token] = b""
        self.special = frozenset(self.special_strings)
        self.byte_fallback_ids = frozenset(self._ids(table.byte_fallback_ids)) - self.special
        single = [token for token, piece in enumerate(self.pieces) if len(piece) == 1]
        # The last id of each byte is kept: one written as a byte if there is any, the lowest of several.
        single.sort(key=lambda token: (token in self.byte_fallback_ids, -token))
        self.byte_tokens = {self.pieces[token][0]: token for token in single}
        # Text repeats itself, and each step encodes the same few words again.
        self._encode_cached_word = lru_cache(MAX_CACHED_WORDS)(self._encode_word)
        self._word_boundaries = make_word_boundary_pattern(self.pieces)
        if any(self.encode(probe.encode()) != self._encode_word(probe.encode()) for probe in PROBES):
            self._word_boundaries = NO_BOUNDARIES

    @cached_property
    def is_exact(self) -> bool:
        """Whether many kinds of text survive encoding; if not, many drafts are lost."""
        return all(self.encode(probe.encode()) is not None for probe in PROBES)

    @property
    def start_id(self) -> int:
        """An id to feed while there is no text yet."""
        return next(iter((*self.opening, *self._ids([self.bos]), *self.eos)), 0)

    def to_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the joined bytes of ids; ids outside the vocabulary have none."""
        pieces, size = self.pieces, self.size
        return b"".join([pieces[token] for token in ids if token < size])

    def encode(self, text: bytes) -> list[int] | None:
        """Encode text as a continuation of other text; the ids' bytes are exactly the text's.

        Returns None if the tokenizer does not reproduce the text: it normalizes, it lacks a character, or
        the text is not UTF-8. Never raises.
        """
        ids: list[int] = []
        begin = 0
        for end in (*self.find_word_boundaries(text), len(text)):
            word = text[begin:end]
            is_cached = len(word) <= MAX_CACHED_WORD_BYTES
            found = self._encode_cached_word(word) if is_cached else self._encode_word(word)
            if found is None:
                return None
            ids += found
            begin = end
        return ids

    def find_word_boundaries(self, text: bytes) -> list[int]:
        """Return the offsets, ascending, at which the text can be split and its parts encoded separately."""
        return [match.start() for match in self._word_boundaries.finditer(text, 1)]

    def _encode_word(self, text: bytes) -> list[int] | None:
        if not text:
            return []
        try:
            readable = text.decode()
        except UnicodeDecodeError:
            return None
        for anchor in self._no_anchor + (SPACE_ANCHORS if readable[0].isspace() else ANCHORS):
            ids = self._encode_raw(anchor + readable)
            begin, missing = len(ids), len(text)
            while missing > 0 and begin > 0:
                begin -= 1
                if ids[begin] >= self.size or not (piece := self.pieces[ids[begin]]):
                    # An unknown or special token, which no other anchor would change.
                    return None
                missing -= len(piece)
            # If missing is negative, the anchor has merged with the text.
            if not missing:
                return ids[begin:] if self.to_bytes(ids[begin:]) == text else None
        return None

    def estimate_lengths(self, texts: Iterable[bytes]) -> list[int]:
        """Estimate how many ids each text takes by itself: one fast batch, without checking the bytes."""
        readable = [text.decode(errors="replace") for text in texts]
        try:
            return [
                len(found.ids)
                for found in self._backend.encode_batch_fast(readable, add_special_tokens=False)
            ]
        # A tokenizer may raise anything.
        except Exception:
            return [1] * len(readable)

    def encode_best_effort(self, data: bytes) -> tuple[list[int], bool]:
        """Encode any bytes as closely as possible; return the ids, and whether they are exact.

        Text that the tokenizer does not reproduce is encoded word by word, then by characters, then by
        bytes; bytes without an id are left out. Never raises.
        """
        whole = self.encode(data)
        if whole is not None:
            return whole, True
        ids: list[int] = []
        for run in RUN.findall(data.decode(errors="surrogateescape")):
            for word in WORD.findall(run):
                ids += self._encode_word_best_effort(word)
        return ids, self.to_bytes(ids) == data

    def _encode_word_best_effort(self, word: str) -> list[int]:
        text = word.encode(errors="surrogateescape")
        ids = self.encode(text)
        if ids is not None:
            return ids
        if len(word) > 1:
            return [token for character in word for token in self._encode_word_best_effort(character)]
        return [self.byte_tokens[byte] for byte in text if byte in self.byte_tokens]

    @cached_property
    def _no_anchor(self) -> tuple[str, ...]:
        """The empty anchor, if the tokenizer encodes text exactly without one."""
        # A tokenizer that adds a space in front of all text would encode the first word differently.
        return ("",) if self.to_bytes(self._encode_raw("a")) == b"a" else ()

    def _encode_raw(self, text: str, adds_specials: bool = False) -> list[int]:
        """Return the ids that the tokenizer gives for text; none if it raises."""
        try:
            return list(self._backend.encode(text, add_special_tokens=adds_specials).ids)
        # A tokenizer may raise anything, such as for an unknown character without an unknown token.
        except Exception:
            return []

    def _ids(self, tokens: Iterable[int | None]) -> Iterator[int]:
        return (token for token in tokens if token is not None and token < self.size)

    def _find_opening(self) -> tuple[int, ...]:
        with_specials = self._encode_raw("a", adds_specials=True)
        return tuple(self._ids(with_specials[: find_ids(with_specials, self._encode_raw("a")) or 0]))
