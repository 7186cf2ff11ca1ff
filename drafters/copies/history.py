"""Store the tokens of finished requests, prompt and answer, as sources for later requests.

All owners share one ring of tokens: the newest text overwrites the least recently finished. An owner finds
only its own texts. Texts can be saved and restored. Those whose drafts were mostly wrong are not saved, and
the most recently copied ones are restored last.
"""

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from reprise.drafters import checked_file
from reprise.drafters.base import SLICE_TOKENS, Slices, TableFileError, finish
from reprise.drafters.copies.copying import GrowingText
from reprise.drafters.copies.occurrences import LONGEST, MAX_MATCH_TOKENS, Hashes, Ids, Match, Occurrences

MAX_TOKENS = 1 << 17
"""Maximum number of tokens of one sequence's views."""

_MIN_CAPACITY = 4096
_MIN_SHELF_NGRAM = 2


class Shelf:
    """A store of texts with a fixed capacity.

    num_tokens: its capacity in tokens, at most MAX_TOKENS.
    tokens: those of all texts; grows in place.
    """

    def __init__(self, num_tokens: int) -> None:
        self.tokens: Ids = array("I")
        self.capacity = min(max(_MIN_CAPACITY, 1 << num_tokens.bit_length()), MAX_TOKENS)
        self._index = Occurrences(self.tokens, self.capacity)
        self._starts: list[int] = []

    def add(self, text: Sequence[int]) -> Slices:
        """Return the work of adding a text, as much of it as fits. Texts are added one after the other."""
        index, tokens = self._index, self.tokens
        if not tokens:
            yield from index.touch()
        first = len(tokens)
        num_tokens = min(len(text), self.capacity - 1 - first)
        if num_tokens > 0:
            self._starts.append(first)
        for at in range(0, num_tokens, SLICE_TOKENS):
            part = array("I", text[at : min(at + SLICE_TOKENS, num_tokens)])
            before = tokens[max(first, first + at - LONGEST) :]
            tokens += part
            index.extend(part, before)
            yield len(part)

    def find(self, hashes: Hashes, end: Ids) -> Match | None:
        """Return the longest occurrence of a text's end. For the parameters see Occurrences.find."""
        return self._index.find(hashes, end, self._is_followed, _MIN_SHELF_NGRAM)

    def _is_followed(self, position: int) -> bool:
        """Return whether a text continues at a position."""
        starts = self._starts
        return position < len(self.tokens) and starts[bisect_right(starts, position) - 1] != position

    def end_of(self, position: int) -> int:
        """Return the end position of the text that contains a position."""
        at = bisect_right(self._starts, position)
        return self._starts[at] if at < len(self._starts) else len(self.tokens)


DEFAULT_TOKENS = 1 << 18
"""Default number of tokens kept; each takes 68 bytes."""

_SEPARATOR = 0xFFFFFFFF  # stands after each text; not a valid token id
_MIN_NGRAM_SIZE = 4  # a pair of tokens seen in another request is too weak as evidence
_HASH_MASK = (1 << 64) - 1
_USE_DECAY = 0.97  # factor on what was seen of a text, for each later token
_MIN_SEEN, _MIN_RIGHT = 16, 0.3  # a text of which this many tokens were seen is kept if this share was right
_NUM_RECENT = 8  # recent texts that a new one is compared with, so that a shared start is not stored twice


@dataclass(frozen=True, slots=True)
class _Text:
    """An added text. oldest: the first position that must still be held for all of it to be found."""

    owner: str
    tokens: Ids
    oldest: int


@dataclass(slots=True)
class _Use:
    """How well a text has predicted later requests.

    num_right, num_wrong: decayed counts of tokens that matched or left it. used_at: the history's end
        position when a token last matched it, or when it was added.
    """

    used_at: int
    num_right: float = 0.0
    num_wrong: float = 0.0

    @property
    def is_worth_keeping(self) -> bool:
        """Whether the text was right often enough, or is not known well yet."""
        num_seen = self.num_right + self.num_wrong
        return num_seen < _MIN_SEEN or self.num_right >= _MIN_RIGHT * num_seen


class History:
    """Texts of finished requests.

    num_tokens: how many tokens to keep, rounded up to a power of two. Raises ValueError if it is below 1.
    restored_end: position up to which all texts count as those of an earlier run; 0 without any.
    """

    def __init__(self, num_tokens: int = DEFAULT_TOKENS) -> None:
        if num_tokens < 1:
            raise ValueError(f"a history must hold at least 1 token; got {num_tokens}")
        self.capacity = max(64, 1 << (num_tokens - 1).bit_length())
        self._num_resets = 0
        self.restored_end = 0
        # The work that was begun last; what was begun before must not add anything any more.
        self._writer: object = None
        self._tokens: Ids = array("I", bytes(4 * self.capacity))
        self._index = Occurrences(self._tokens, self.capacity, has_64_bit_positions=True)
        finish(self._index.touch())
        self._starts: list[int] = []
        self._owners: list[str] = []
        self._uses: list[_Use] = []
        self._recent: deque[_Text] = deque(maxlen=_NUM_RECENT)

    def reset(self) -> None:
        """Forget everything."""
        self._num_resets += 1
        # Positions are not reused: one that a sequence still holds is recognized as gone.
        self._index.forget()
        np.frombuffer(self._tokens, np.uint32)[:] = 0
        self._starts, self._owners, self._uses = [], [], []
        self._recent.clear()

    @property
    def num_texts(self) -> int:
        """Number of texts still held, at least in part."""
        return len(self._starts)

    @property
    def num_tokens(self) -> int:
        """Number of tokens held."""
        return self._index.end - self._index.start

    def add(self, owner: str, text: GrowingText) -> Slices:
        """Return the work of adding a finished text, or only its end if it is too long.

        A prefix that it shares with one of the owner's recent texts is not stored again. Texts are added one
        after the other: the rest of a text is dropped when work on another text begins, or at a reset.
        """
        return self._add(owner, text, self._num_resets)

    def _add(self, owner: str, text: GrowingText, num_resets: int) -> Slices:
        self._writer = writer = object()
        yield from text.take_tokens()
        tokens = text.tokens
        num_shared, oldest = yield from self._find_shared_start(owner, tokens)
        if self._writer is not writer or self._num_resets != num_resets:
            return
        index, salt = self._index, salt_of(owner)
        if index.end > index.start and index.token(index.end - 1) != _SEPARATOR:
            # The text before was not added to its end.
            self._separate()
        first = max(0, num_shared - MAX_MATCH_TOKENS, len(tokens) - self.capacity + 1)
        position = index.end
        self._starts.append(position)
        self._owners.append(owner)
        self._uses.append(_Use(position))
        size = min(SLICE_TOKENS, self.capacity)
        for at in range(first, len(tokens), size):
            part = tokens[at : at + size]
            self._write(part)
            index.extend(part, tokens[max(first, at - LONGEST) : at], salt)
            yield len(part)
            if self._writer is not writer or self._num_resets != num_resets:
                return
        self._separate()
        self._recent.append(_Text(owner, tokens, min(oldest, position) if num_shared else position))
        num_gone = bisect_right(self._starts, index.start) - 1
        if num_gone > 0:
            del self._starts[:num_gone], self._owners[:num_gone], self._uses[:num_gone]

    def _write(self, part: Ids) -> None:
        """Write the next tokens into the ring, at most its size."""
        at = self._index.end & (self.capacity - 1)
        num_before_end = min(len(part), self.capacity - at)
        self._tokens[at : at + num_before_end] = part[:num_before_end]
        self._tokens[: len(part) - num_before_end] = part[num_before_end:]

    def _separate(self) -> None:
        self._write(array("I", [_SEPARATOR]))
        self._index.append(None)

    def find(self, owner: str, hashes: Hashes, text: Ids) -> Match | None:
        """Return the longest occurrence of a text's end in the owner's finished texts.

        For the parameters see Occurrences.find.
        """
        if not self._starts:
            return None
        index = self._index

        def belongs_to_owner(position: int) -> bool:
            return self._owners[self._text_at(position)] == owner and index.token(position) != _SEPARATOR

        salted = _salted(hashes, salt_of(owner))
        return index.find(salted, text, belongs_to_owner, _MIN_NGRAM_SIZE)

    def texts(self) -> list[tuple[str, Ids]]:
        """Return owner and tokens of each text worth saving, the least recently used first.

        If a text is partly overwritten, or its prefix is shared, only the stored part is returned.
        """
        index, found = self._index, []
        for at, (start, owner, use) in enumerate(zip(self._starts, self._owners, self._uses, strict=True)):
            end = self._starts[at + 1] if at + 1 < len(self._starts) else index.end
            tokens = index.slice(max(start, index.start), end)
            while tokens and tokens[-1] == _SEPARATOR:
                tokens.pop()
            if len(tokens) >= _MIN_NGRAM_SIZE and use.is_worth_keeping:
                found.append((use.used_at, owner, tokens))
        return [(owner, tokens) for _, owner, tokens in sorted(found, key=lambda one: one[0])]

    def restore(self, texts: Sequence[tuple[str, Ids]]) -> Slices:
        """Return the work of adding an earlier run's texts, up to a reset. Call it before adding others."""
        return self._restore(texts, self._num_resets)

    def _restore(self, texts: Sequence[tuple[str, Ids]], num_resets: int) -> Slices:
        for owner, tokens in texts:
            yield from self._add(owner, GrowingText(tokens), num_resets)
            if self._num_resets != num_resets:
                return
            self.restored_end = self._index.end

    def _text_at(self, position: int) -> int:
        """Return which text holds the token before a position."""
        return bisect_right(self._starts, position - 1) - 1

    def follow(self, position: int, token: int) -> bool:
        """Compare the token at a position, which was expected next, with the committed token.

        Returns whether they are equal, and counts that for the position's text. A position that is no longer
        held counts as unequal, for no text.
        """
        index = self._index
        if not index.start <= position < index.end:
            return False
        expected = index.token(position)
        if expected != _SEPARATOR:
            use = self._uses[self._text_at(position + 1)]
            is_right = expected == token
            use.num_right = use.num_right * _USE_DECAY + is_right
            use.num_wrong = use.num_wrong * _USE_DECAY + (not is_right)
            if is_right:
                use.used_at = index.end
        return expected == token

    def copy(self, position: int, limit: int) -> list[int]:
        """Copy up to limit tokens from a position to its text's end; none if it is no longer held."""
        index = self._index
        if not index.start <= position < index.end:
            return []
        tokens = index.slice(position, min(position + limit, index.end)).tolist()
        return tokens[: tokens.index(_SEPARATOR)] if _SEPARATOR in tokens else tokens

    def _find_shared_start(self, owner: str, tokens: Ids) -> Generator[int, None, tuple[int, int]]:
        """Return how many leading tokens a recent text shares, and the oldest position that holds them."""
        best, oldest, at = 0, 0, 0
        texts = [text for text in self._recent if text.owner == owner and text.oldest >= self._index.start]
        while texts:
            part, equal = tokens[at : at + SLICE_TOKENS], []
            for text in texts:
                other = text.tokens[at : at + SLICE_TOKENS]
                if part and part == other:
                    equal.append(text)
                    continue
                num_shared = at + _count_common_start(other, part)
                if num_shared > max(best, MAX_MATCH_TOKENS):
                    best, oldest = num_shared, text.oldest
            texts, at = equal, at + len(part)
            yield len(part)
        return best, oldest


def _count_common_start(a: Ids, b: Ids) -> int:
    """Count the leading tokens that two texts have in common."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def salt_of(owner: str) -> int:
    """Return the number with which an owner's hashes are combined. It differs from run to run."""
    return hash(owner) & _HASH_MASK


def _salted(hashes: Hashes, salt: int) -> Hashes:
    # Owners share the tables but not their slots, so that one owner's texts do not hide another's.
    one, two, four, eight, sixteen = hashes
    return one ^ salt, two ^ salt, four ^ salt, eight ^ salt, sixteen ^ salt


MAGIC = b"reprise history\n"
VERSION = 1

_TOKEN_BYTES = 4
_MAX_TEXTS = 1024  # so that the header stays below its limit: an entry takes up to 48 bytes


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """The file of one vocabulary's finished texts.

    vocabulary: its fingerprint. scope: "process" or "api-key". A file with other ones is not loaded.
    """

    path: Path
    vocabulary: str
    scope: str

    def write(self, texts: Sequence[tuple[str, Ids]]) -> int:
        """Write texts, each with its owner; return the size of the file in bytes. Raises TableFileError.

        If the header would be too long, the first texts are left out.
        """
        kept = texts[-_MAX_TEXTS:]
        header = {**self._wanted(), "texts": [[owner, len(tokens)] for owner, tokens in kept]}
        return checked_file.write(
            self.path, MAGIC, header, (np.asarray(tokens).astype("<u4").tobytes() for _, tokens in kept)
        )

    def read(self, max_tokens: int) -> list[tuple[str, Ids]]:
        """Return the texts, each with its owner; a file with more than max_tokens is refused.

        Returns [] if there is no file. Raises TableFileError, also if it is of another vocabulary or scope.
        """
        path = self.path
        if not path.exists():
            return []
        header, arrays = checked_file.read(
            path, MAGIC, "a file of finished requests", max_tokens * _TOKEN_BYTES
        )
        try:
            checked_file.check_header(path, header, self._wanted())
            sizes = [(str(owner), int(size)) for owner, size in header["texts"]]
            if min((size for _, size in sizes), default=0) < 0:
                raise ValueError("a text has a negative length")
            if sum(size for _, size in sizes) * _TOKEN_BYTES != len(arrays):
                raise ValueError("its length does not agree with its header")
        except (ValueError, KeyError, TypeError) as error:
            raise TableFileError(f"cannot load {path}: its contents are invalid ({error})") from error
        tokens = array("I", np.frombuffer(arrays, "<u4").astype(np.uint32).tobytes())
        ends = accumulate(size for _, size in sizes)
        return [(owner, tokens[end - size : end]) for (owner, size), end in zip(sizes, ends, strict=True)]

    def delete(self) -> None:
        """Delete the file, if it exists and can be deleted."""
        with suppress(OSError):
            self.path.unlink()

    def _wanted(self) -> dict[str, object]:
        return {"version": VERSION, "vocabulary": self.vocabulary, "scope": self.scope}
