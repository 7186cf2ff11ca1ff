"""Encode text with a tokenizer on several threads at once.

transformers configures its tokenizer anew at every call, so two calls must not run at once. It also builds
lists of several numbers per token while it holds the interpreter lock.
"""

import json
import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, product
from typing import Any

from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from reprise.engine.interface.cancellation import check_wanted
from reprise.engine.interface.errors import UnbrokenTextError

_BEFORE_SPACE = rb"(?<![ \t\r\n])(?= [^ \t\r\n])"
_AT_LINE = rb"(?<=[^\s\x80-\xff]\n)(?=[^ \t\r\n])"
_WORD_BOUNDARY = re.compile(_BEFORE_SPACE + rb"|" + _AT_LINE)
NO_BOUNDARIES = re.compile(rb"(?!)")
"""Never matches."""

_CROSSES_SPACE = re.compile(rb"[^ \t\r\n] (?![ \t\r\n])")
_CROSSES_LINE = re.compile(rb"\n[^ \t\r\n]")


def find_ids(ids: Sequence[int], part: Sequence[int], start: int = 0) -> int | None:
    """Return the index of a run of token ids at or after start; None if there is none."""
    places = range(start, len(ids) - len(part) + 1)
    return next((at for at in places if ids[at : at + len(part)] == part), None)


def token_ends(ids: Sequence[int], pieces: Sequence[bytes]) -> list[int]:
    """Return each token's end offset in the joined text.

    pieces: the bytes of every token of the vocabulary.
    """
    return list(accumulate(len(pieces[token]) for token in ids))


def tokens_after(ids: Sequence[int], pieces: Sequence[bytes], num_bytes: int) -> list[int] | None:
    """Return the tokens after the first num_bytes of their text; None if no token begins there."""
    if not num_bytes:
        return list(ids)
    ends = token_ends(ids, pieces)
    at = bisect_left(ends, num_bytes)
    return list(ids[at + 1 :]) if at < len(ends) and ends[at] == num_bytes else None


def valid_utf8_prefix(text: bytes) -> bytes:
    """Return the longest prefix that is valid UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError as fault:
        return text[: fault.start]
    return text


def find_complete_end(data: bytes) -> int:
    """Return the length of data without an incomplete UTF-8 character at its end.

    Invalid bytes that no later byte can complete are kept.
    """
    for back in range(1, min(3, len(data)) + 1):
        if data[-back] & 0xC0 != 0x80:
            # Not by an incremental decoder, which also waits within a surrogate.
            try:
                data[-back:].decode()
            except UnicodeDecodeError as fault:
                return len(data) - back if fault.reason == "unexpected end of data" else len(data)
            break
    return len(data)


def is_character_boundary(text: bytes, at: int) -> bool:
    """Return whether no UTF-8 character spans the offset."""
    return at == len(text) or text[at] & 0xC0 != 0x80


def find_word_boundaries(text: bytes) -> list[int]:
    """Return the word boundaries within a text, ascending."""
    return [match.start() for match in _WORD_BOUNDARY.finditer(text, 1)]


def make_word_boundary_pattern(pieces: Sequence[bytes]) -> re.Pattern[bytes]:
    """Make a pattern that finds the word boundaries which no token of a vocabulary crosses.

    Splitting a text there does not change its tokens, since no merge or score crosses such a boundary.
    """
    kept = [_BEFORE_SPACE] * (not any(map(_CROSSES_SPACE.search, pieces)))
    kept += [_AT_LINE] * (not any(map(_CROSSES_LINE.search, pieces)))
    return re.compile(rb"|".join(kept)) if kept else NO_BOUNDARIES


def find_shared_boundaries(
    text: bytes, ends: Sequence[int], others: Sequence[int], limit: int
) -> Iterator[int]:
    """Yield the boundaries that two vocabularies share in a text, the best first.

    Word boundaries come before others, and later ones before earlier ones.

    ends, others: where the tokens of either vocabulary end. limit: the largest offset wanted.
    """
    shared = {end for end in ends if end <= limit and end < len(text) and is_character_boundary(text, end)}
    shared.intersection_update(others)
    words = shared.intersection(find_word_boundaries(text))
    yield from sorted(words, reverse=True)
    yield from sorted(shared - words, reverse=True)


SLICE_CHARACTERS = 2**16
"""Maximum characters of a slice with borders in it: 60 ms if each is four tokens, mostly 10."""
MAX_UNBROKEN = 2**20
"""Maximum characters without a border, or of a text that is not cut: a second, which nothing ends."""
_LETTER = r"[^\W\d_]"
_KINDS = {
    "space": (rf"(?<={_LETTER})(?= {_LETTER})", rf"(?:{_LETTER}|\ufffd) "),
    "line": (rf"(?<=\S\n)(?={_LETTER})", rf"\n(?:{_LETTER}|\ufffd)"),
}
"""For each kind of border, what matches it in a text, and what matches tokens that cross it."""
_NORMALIZERS = {
    *("Sequence", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "Replace"),
    *("BertNormalizer", "StripAccents", "Precompiled"),
}
_SEVERAL_SPACES = {"Regex": " {2,}"}
_OF_WORDS = {"Unigram", "WordPiece"}
"""Models that put a word together as a whole, so that words must have been separated before."""
_LEFT = ("a", "The", "żółw", "中文", "x1 y", "\n  if", "e\u0301a", "  a", "don't")
_RIGHT = ("b", "The end", "żółw", "中文", "a1", "it's", "b  c\n", "if\n    x")

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Slicing:
    """Where to cut a tokenizer's texts. borders: matches the places.

    drops: whether the space after a border is in neither slice.
    """

    borders: re.Pattern[str]
    drops: bool = False

    def slices(self, text: str, num_characters: int) -> Iterator[str]:
        """Yield the slices of a text, of at most num_characters if it has borders.

        Raises UnbrokenTextError if a slice would have more than MAX_UNBROKEN characters.
        """
        start, skipped = 0, 0
        while len(text) - start > num_characters:
            end = self._cut(text, start, num_characters)
            if end is None:
                break
            yield text[start + skipped : end]
            start, skipped = end, int(self.drops)
        yield text[start + skipped :]

    def _cut(self, text: str, start: int, num_characters: int) -> int | None:
        """Return where the slice from start ends; None at the end of the text."""
        step, until = 256, start + num_characters
        while until > start:
            # The last one, looked for from the end.
            found = [
                match.start() for match in self.borders.finditer(text, max(start + 1, until - step), until)
            ]
            if found:
                return found[-1]
            until, step = until - step + 2, 2 * step
        for at in range(start + num_characters - 2, len(text), num_characters):
            if at - start > MAX_UNBROKEN:
                raise UnbrokenTextError(MAX_UNBROKEN)
            if (match := self.borders.search(text, max(at, start + 1), at + num_characters + 2)) is not None:
                return match.start()
        if len(text) - start > MAX_UNBROKEN:
            raise UnbrokenTextError(MAX_UNBROKEN)
        return None


def find_slicing(backend: Backend, encode: Encode) -> Slicing | None:
    """Return how to cut a tokenizer's texts; None if that could change their ids.

    encode: returns the ids of a text without special tokens.
    """
    config = json.loads(backend.to_str())
    if not _is_local(config):
        return None
    if config["model"].get("ignore_merges") and len(backend.pre_tokenizer.pre_tokenize_str("a b")) < 2:
        # A text that is a token as a whole is not put together from others.
        return None
    texts = [backend.decoder.decode([token]) if backend.decoder else token for token in backend.get_vocab()]
    texts += [one["content"] for one in config["added_tokens"]]
    kinds = [
        name
        for name, (_, crossing) in _KINDS.items()
        if not any(map(re.compile(crossing).search, texts)) and _separates(backend, config, name)
    ]
    for drops in (False, True):
        kept = [
            _KINDS[name][0]
            for name in kinds
            if (name == "space" or not drops)
            and _holds(Slicing(re.compile(_KINDS[name][0]), drops), encode, name)
        ]
        if kept:
            return Slicing(re.compile("|".join(kept)), drops)
    return None


def _is_local(config: dict[str, Any]) -> bool:
    """Return whether a tokenizer treats each part of a text by its surroundings alone."""
    model, normalizer = config["model"], config["normalizer"]
    if model["type"] in _OF_WORDS:
        model = {"type": "BPE"}
    # Unknown characters that are neighbours become one token.
    fuses = model.get("fuse_unk") and not model.get("byte_fallback")
    is_plain = model.get("type") == "BPE" and not fuses and not model.get("end_of_word_suffix")
    steps = [normalizer, *(normalizer or {}).get("normalizers", ())] if normalizer else []
    added = config["added_tokens"]
    eats = any(
        (one["rstrip"] and one["content"][-1:].isalpha()) or (one["lstrip"] and one["content"][:1].isalpha())
        for one in added
    )
    return is_plain and not eats and all(_is_local_step(one) for one in steps)


def _separates(backend: Backend, config: dict[str, Any], name: str) -> bool:
    """Return whether a border separates words, if the model needs that."""
    if config["model"]["type"] not in _OF_WORDS:
        return True
    split = backend.pre_tokenizer
    return split is not None and len(split.pre_tokenize_str("a b" if name == "space" else "a\nb")) > 1


def _is_local_step(step: dict[str, Any]) -> bool:
    """Return whether a normalizer treats each character by its surroundings alone."""
    if step["type"] == "Strip":
        # A slice may begin with a space.
        return not step["strip_left"]
    if step["type"] == "Replace" and step["pattern"] != _SEVERAL_SPACES:
        return len(step["pattern"].get("String", "  ")) == 1
    return step["type"] in _NORMALIZERS


def _holds(slicing: Slicing, encode: Encode, name: str) -> bool:
    """Return whether trials find the same ids for a text and its slices."""
    for left, right in product(_LEFT, _RIGHT):
        text = f"{left} {right}" if name == "space" else f"{left}\n{right}"
        if encode(text) != [token for part in slicing.slices(text, 1) for token in encode(part)]:
            return False
    return True


def copy_backend(backend: Backend) -> Backend:
    """Copy a tokenizer, without padding, truncation and dropout.

    The copy shares the original's model, which nothing changes and which is slow to copy.
    """
    if getattr(backend.model, "dropout", None):
        # BPE dropout would cut text at random.
        config = json.loads(backend.to_str())
        config["model"]["dropout"] = None
        copy = Backend.from_str(json.dumps(config))
    else:
        copy = Backend(backend.model)
        copy.normalizer, copy.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        copy.post_processor, copy.decoder = backend.post_processor, backend.decoder
        added = backend.get_added_tokens_decoder()
        copy.add_tokens([added[token] for token in sorted(added)])
        if repr(copy.get_added_tokens_decoder()) != repr(added):
            # Added tokens whose ids do not follow those of the model.
            copy = Backend.from_str(backend.to_str())
    copy.no_padding()
    copy.no_truncation()
    return copy


class TextEncoder:
    """Encodes text into the ids that transformers gives. Thread-safe; releases the GIL.

    Long texts are encoded in slices, if the tokenizer allows that. Cancelled work ends between two slices;
    see engine/interface/cancellation.py.

    inner: one of transformers' tokenizers. slice_characters: maximum length of a slice with borders in it.
    """

    def __init__(self, inner: Any, slice_characters: int = SLICE_CHARACTERS) -> None:
        self._inner = inner
        self._slice_characters = slice_characters
        self._lock = threading.Lock()
        self._around: tuple[tuple[int, ...], tuple[int, ...]] = (), ()

    def encode(self, text: str, *, adds_specials: bool = False, splits_specials: bool = False) -> list[int]:
        """Return the ids of a text.

        adds_specials: add the special tokens around a prompt. splits_specials: encode text that spells a
            special token as ordinary text.
        """
        return self.encode_all([text], adds_specials=adds_specials, splits_specials=splits_specials)[0]

    def encode_all(
        self, texts: Sequence[str], *, adds_specials: bool = False, splits_specials: bool = False
    ) -> list[list[int]]:
        """Return the ids of each text. See encode(). Raises UnbrokenTextError if one cannot be cut."""
        longest = max(map(len, texts), default=0)
        if longest > MAX_UNBROKEN and (self._has_own_way or self._slicing is None):
            raise UnbrokenTextError(MAX_UNBROKEN)
        if self._has_own_way:
            options = {"split_special_tokens": True} if splits_specials else {}
            with self._lock:
                return [
                    list(self._inner(text, add_special_tokens=adds_specials, **options)["input_ids"])
                    for text in texts
                ]
        backend = self._splitting if splits_specials else self._plain
        if longest <= self._slice_characters or self._slicing is None:
            found = backend.encode_batch_fast(list(texts), add_special_tokens=adds_specials)
            return [list(one.ids) for one in found]
        return [self._in_slices(backend, self._slicing, text, adds_specials) for text in texts]

    def _in_slices(self, backend: Backend, slicing: Slicing, text: str, adds_specials: bool) -> list[int]:
        before, after = self._around if adds_specials else ((), ())
        ids = [*before]
        for one in slicing.slices(text, self._slice_characters):
            check_wanted()
            (found,) = backend.encode_batch_fast([one], add_special_tokens=False)
            ids += found.ids
        return [*ids, *after]

    @cached_property
    def _slicing(self) -> Slicing | None:
        """How texts are cut; None if they are not."""
        (plain,) = self._plain.encode_batch_fast(["a"], add_special_tokens=False)
        (whole,) = self._plain.encode_batch_fast(["a"], add_special_tokens=True)
        at = find_ids(whole.ids, plain.ids)
        if at is None or not plain.ids:
            return None
        self._around = tuple(whole.ids[:at]), tuple(whole.ids[at + len(plain.ids) :])
        return find_slicing(
            self._plain, lambda text: list(self._plain.encode(text, add_special_tokens=False).ids)
        )

    @cached_property
    def _has_own_way(self) -> bool:
        """Whether the tokenizer's class does more than call the tokenizers library, as CodeLlama's does."""
        kind, usual = type(self._inner), PreTrainedTokenizerFast
        names = ("__call__", "encode", "_encode_plus", "set_truncation_and_padding")
        return any(getattr(kind, name, None) is not getattr(usual, name) for name in names)

    @cached_property
    def _plain(self) -> Backend:
        copy = copy_backend(self._inner.backend_tokenizer)
        copy.encode_special_tokens = bool(self._inner.split_special_tokens)
        return copy

    @cached_property
    def _splitting(self) -> Backend:
        copy = copy_backend(self._inner.backend_tokenizer)
        copy.encode_special_tokens = True
        return copy
