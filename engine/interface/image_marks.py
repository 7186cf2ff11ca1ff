"""Marks that stand for images in the texts of messages, until the chat template is rendered."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

OPEN, _CLOSE = "\ufdd2", "\ufdd3"
"""Around an image's number. Unicode keeps both from ever being characters."""
MARK = re.compile(f"{OPEN}([0-9]+){_CLOSE}")
_MARKS = str.maketrans("", "", OPEN + _CLOSE)


def mark(number: int) -> str:
    """Return the mark of the image with this number."""
    return f"{OPEN}{number}{_CLOSE}"


def without_marks(text: str) -> str:
    """Remove from a text the two characters that enclose the number in a mark, so that no mark is left."""
    return text.translate(_MARKS)


def before_images(text: str) -> str:
    """Return the part of a text before its first image mark."""
    return text.partition(OPEN)[0]


def numbers_in(messages: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the numbers of all image marks in the messages, in order."""
    texts = (one["content"] for one in messages if isinstance(one.get("content"), str))
    return [int(number) for text in texts for number in MARK.findall(text)]
