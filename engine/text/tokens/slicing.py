"""Cut a text at borders that no token crosses, so that its slices together have the whole text's ids.

Two kinds of places are tried: in front of a single space between letters, and at a letter after a single line
break. They are used if no token crosses one, if nothing that the tokenizer does could reach across it, and if
trials show no difference.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from tokenizers import Tokenizer as Backend

from reprise.engine.interface.errors import UnbrokenTextError

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
    """Where a tokenizer's texts are cut. borders: matches the places.

    drops: whether the space behind a border is in neither slice.
    """

    borders: re.Pattern[str]
    drops: bool = False

    def slices(self, text: str, num_characters: int = SLICE_CHARACTERS) -> Iterator[str]:
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
    """Return how to cut the texts of a tokenizer; None if that could change their ids.

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
    for drops, names in ((False, kinds), (True, [one for one in kinds if one == "space"])):
        if drops:
            names = [one for one in names if one == "space"]
        kept = [name for name in names if _holds(Slicing(re.compile(_KINDS[name][0]), drops), encode, name)]
        if kept:
            return Slicing(re.compile("|".join(_KINDS[name][0] for name in kept)), drops)
    return None


def _is_local(config: dict[str, Any]) -> bool:
    """Return whether all that a tokenizer does to a place of a text depends on the places around it alone."""
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
    """Return whether words on both sides of a border are separate, if the model needs that."""
    if config["model"]["type"] not in _OF_WORDS:
        return True
    split = backend.pre_tokenizer
    return split is not None and len(split.pre_tokenize_str("a b" if name == "space" else "a\nb")) > 1


def _is_local_step(step: dict[str, Any]) -> bool:
    """Return whether what a normalizer does to a place depends on the characters around it alone."""
    if step["type"] == "Strip":
        # A slice may begin with a space.
        return not step["strip_left"]
    if step["type"] == "Replace" and step["pattern"] != _SEVERAL_SPACES:
        return len(step["pattern"].get("String", "  ")) == 1
    return step["type"] in _NORMALIZERS


def _holds(slicing: Slicing, encode: Encode, name: str) -> bool:
    """Return whether trials show no difference between a text and its slices."""
    for left, right in product(_LEFT, _RIGHT):
        text = f"{left} {right}" if name == "space" else f"{left}\n{right}"
        if encode(text) != [token for part in slicing.slices(text, 1) for token in encode(part)]:
            return False
    return True
