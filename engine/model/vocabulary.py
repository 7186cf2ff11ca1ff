"""A vocabulary by the bytes of its tokens, and text to tokens as a model says it in mid-text.

Translating between vocabularies rests on bytes and never on what a tokenizer decodes: decoders strip,
clean up and normalise. So whatever is encoded here is compared, byte for byte, with what was asked for.
"""

import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache

from tokenizers import Tokenizer as Backend

from engine.model.text_boundaries import NO_BOUNDARIES, make_word_boundary_pattern
from engine.model.token_bytes import TokenByteDecoder
from engine.model.token_bytes import VocabularyError as VocabularyError
from engine.model.tokenizer import Tokenizer

ANCHORS = ("\n", ".", "a", "0", "中")
"""What text is encoded behind: one of them does not melt into what follows."""
SPACE_ANCHORS = ("a", ".", "0", "\n", "中")
"""The same for text that begins with white space, which a line break would take for its own."""

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
"""Texts that an exact tokenizer gives back: case, spaces, lines, characters of one to four bytes."""

NUM_REMEMBERED_WORDS = 8192
LONGEST_REMEMBERED_WORD = 64

WORD = re.compile(r"\s*\S+|\s+")
# As Python reads bytes that are not UTF-8.
RUN = re.compile("[\udc80-\udcff]+|[^\udc80-\udcff]+")


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
    special_strings: dict[int, str]
    """How specials are written."""
    byte_tokens: dict[int, int]
    """Byte -> an id that is this very byte. Empty or partial where a vocabulary has no such tokens."""
    byte_fallback_ids: frozenset[int]
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
            text = tokenizer.backend.to_str()
        except AttributeError as fault:
            raise VocabularyError("its tokenizer is none of the tokenizers library") from fault
        written = json.loads(text)
        if written["model"].get("dropout"):
            # Text must not be cut by chance.
            written["model"]["dropout"] = None
            text = json.dumps(written)
        self._backend = Backend.from_str(text)
        self._backend.no_padding()
        self._backend.no_truncation()
        self.opening = self._find_opening()
        # Text that is spelled like a special is text.
        self._backend.encode_special_tokens = True

        speller = TokenByteDecoder(written)
        added = {entry["id"]: entry for entry in written["added_tokens"]}
        wrapped = tokenizer.wrapped
        first_eos = wrapped.eos_token_id
        self.eos = tuple(sorted(self._ids(tokenizer.eos_ids), key=lambda token: (token != first_eos, token)))
        self.bos = next(iter(self._ids([wrapped.bos_token_id])), None)
        special = {token for token, entry in added.items() if entry["special"]}
        special |= {token for token in (self.bos, speller.unknown) if token is not None}
        self.pieces = [b""] * self.size
        self.special_strings = {}
        byte_fallback_ids = set()
        for spelling, token in self._backend.get_vocab(with_added_tokens=True).items():
            if token >= self.size:
                continue
            piece = speller.piece(spelling, token)
            if token in special or (token in self.eos and (token in added or not piece.isspace())):
                self.special_strings[token] = spelling
            else:
                self.pieces[token] = piece
                if speller.is_byte(spelling):
                    byte_fallback_ids.add(token)
        self.special = frozenset(self.special_strings)
        self.byte_fallback_ids = frozenset(byte_fallback_ids)
        single = [token for token, piece in enumerate(self.pieces) if len(piece) == 1]
        # Those written as bytes before those of text, the first before others: the last one said stays.
        single.sort(key=lambda token: (token in byte_fallback_ids, -token))
        self.byte_tokens = {self.pieces[token][0]: token for token in single}
        # Text repeats itself, and a step encodes the same few words again and again.
        self._remembered_word = lru_cache(NUM_REMEMBERED_WORDS)(self._encode_word)
        self._word_edges = make_word_boundary_pattern(self.pieces)
        if any(self.encode(probe.encode()) != self._encode_word(probe.encode()) for probe in PROBES):
            self._word_edges = NO_BOUNDARIES

    @cached_property
    def is_exact(self) -> bool:
        """Whether text of many kinds is given back as it was; where not, much of a draft is lost."""
        return all(self.encode(probe.encode()) is not None for probe in PROBES)

    @property
    def start_id(self) -> int:
        """An id to feed where there is no text yet."""
        return next(iter((*self.opening, *self._ids([self.bos]), *self.eos)), 0)

    def to_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of ids, one after another; ids that the vocabulary does not have are none."""
        pieces, size = self.pieces, self.size
        return b"".join([pieces[token] for token in ids if token < size])

    def encode(self, text: bytes) -> list[int] | None:
        """The ids of text as a model says it in mid-text: their bytes are exactly text.

        None if the tokenizer does not give the text back as it is: one that normalises, that does not know
        a character, text that is not UTF-8. Never raises.
        """
        ids: list[int] = []
        begin = 0
        for end in (*self.find_word_boundaries(text), len(text)):
            word = text[begin:end]
            remembered = len(word) <= LONGEST_REMEMBERED_WORD
            found = self._remembered_word(word) if remembered else self._encode_word(word)
            if found is None:
                return None
            ids += found
            begin = end
        return ids

    def find_word_boundaries(self, text: bytes) -> list[int]:
        """Offsets within a text, ascending: its ids are those of what stands between them, in turn."""
        return [match.start() for match in self._word_edges.finditer(text, 1)]

    def _encode_word(self, text: bytes) -> list[int] | None:
        if not text:
            return []
        try:
            readable = text.decode()
        except UnicodeDecodeError:
            return None
        for anchor in self._plain + (SPACE_ANCHORS if readable[0].isspace() else ANCHORS):
            ids = self._ids_of(anchor + readable)
            begin, missing = len(ids), len(text)
            while missing > 0 and begin > 0:
                begin -= 1
                if ids[begin] >= self.size or not (piece := self.pieces[ids[begin]]):
                    # Something that is not known, whatever stands before it.
                    return None
                missing -= len(piece)
            # Else the anchor has melted into the text.
            if not missing:
                return ids[begin:] if self.to_bytes(ids[begin:]) == text else None
        return None

    def estimate_lengths(self, texts: Iterable[bytes]) -> list[int]:
        """How many ids each text takes by itself, as it seems at first sight; quick, for many."""
        readable = [text.decode(errors="replace") for text in texts]
        try:
            return [
                len(found.ids)
                for found in self._backend.encode_batch_fast(readable, add_special_tokens=False)
            ]
        # A tokenizer may raise anything.
        except Exception:
            return [1] * len(readable)

    def encode_bytes(self, data: bytes) -> list[int] | None:
        """The ids of any bytes, exactly; None where there are none for some of them. Never raises."""
        ids, is_exact = self.encode_best_effort(data)
        return ids if is_exact else None

    def encode_best_effort(self, data: bytes) -> tuple[list[int], bool]:
        """The ids of any bytes as well as they can be said, and whether they are exactly these bytes.

        What the tokenizer does not give back is said word by word, then in characters, then in bytes; what
        has no bytes either is left out. Never raises.
        """
        whole = self.encode(data)
        if whole is not None:
            return whole, True
        ids: list[int] = []
        for run in RUN.findall(data.decode(errors="surrogateescape")):
            for word in WORD.findall(run):
                ids += self._spell_word(word)
        return ids, self.to_bytes(ids) == data

    def _spell_word(self, word: str) -> list[int]:
        text = word.encode(errors="surrogateescape")
        ids = self.encode(text)
        if ids is not None:
            return ids
        if len(word) > 1:
            return [token for character in word for token in self._spell_word(character)]
        return [self.byte_tokens[byte] for byte in text if byte in self.byte_tokens]

    @cached_property
    def _plain(self) -> tuple[str, ...]:
        """No anchor, where text needs none."""
        # A tokenizer that puts a space before all text would say the first word as another one.
        return ("",) if self.to_bytes(self._ids_of("a")) == b"a" else ()

    def _ids_of(self, text: str, adds_specials: bool = False) -> list[int]:
        """What the tokenizer makes of text, whatever it is; nothing where it raises."""
        try:
            return list(self._backend.encode(text, add_special_tokens=adds_specials).ids)
        # A tokenizer may raise anything, as for a character that it has no unknown token for.
        except Exception:
            return []

    def _ids(self, tokens: Iterable[int | None]) -> Iterator[int]:
        return (token for token in tokens if token is not None and token < self.size)

    def _find_opening(self) -> tuple[int, ...]:
        with_specials, without = self._ids_of("a", adds_specials=True), self._ids_of("a")
        for at in range(len(with_specials) - len(without) + 1):
            if with_specials[at : at + len(without)] == without:
                return tuple(self._ids(with_specials[:at]))
        return ()


def find_complete_end(data: bytes) -> int:
    """How many leading bytes are left if an incomplete character at the end is cut off.

    Bytes that no later ones can make a character stay where they are.
    """
    for back in range(1, min(3, len(data)) + 1):
        if data[-back] & 0xC0 != 0x80:
            try:
                data[-back:].decode()
            except UnicodeDecodeError as fault:
                return len(data) - back if fault.reason == "unexpected end of data" else len(data)
            break
    return len(data)
