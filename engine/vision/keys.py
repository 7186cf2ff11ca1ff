"""Distinguish prompts with different images, which share the same placeholder tokens.

Besides tokens a sequence has keys: the same ids, but with ids beyond the vocabulary for placeholders.
Drafters read keys; code that computes texts reads tokens. Two images may share keys, so prefix lookups also
compare their whole digests (kv_cache/prefix_cache/text_key.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import shake_256

import numpy as np

from reprise.drafters.base import Draft
from reprise.engine.interface.images import PromptImage
from reprise.engine.kv_cache.prefix_cache.text_key import TextKey

Images = Sequence[PromptImage]


def prompt_keys(prompt: Sequence[int], images: Images, vocab_size: int) -> list[int]:
    """Return a prompt's keys: (n,) below 2**31. vocab_size: number of token ids."""
    keys = list(prompt)
    for image in images:
        placeholder = prompt[image.start]
        places = [at for at in range(image.start, image.end) if prompt[at] == placeholder]
        drawn = np.frombuffer(shake_256(image.key).digest(4 * len(places)), "<u4").astype(np.int64)
        for at, key in zip(places, (vocab_size + drawn % (2**31 - vocab_size)).tolist(), strict=True):
            keys[at] = key
    return keys


def whole_images(images: Images, length: int) -> int:
    """Shorten a prefix that ends within an image to that image's start; return its length.

    Two images may share their first keys by chance, but hardly all.
    """
    return next((image.start for image in images if image.start < length < image.end), length)


def chunk_end(images: Images, start: int, end: int) -> int:
    """Move a chunk's end out of an image, so that the chunk [start, end) divides none.

    It moves back to the image's start or, if the chunk begins there, on to the image's end.
    """
    for image in images:
        if image.start < end < image.end:
            return image.start if image.start > start else image.end
    return end


def without_cut_images(images: Images, text: TextKey, match: Callable[[TextKey], int]) -> TextKey:
    """Shorten a prompt's text until its known prefix does not end within an image.

    match: counts the leading tokens that are known, never the last one.
    """
    while images and (whole := whole_images(images, length := match(text))) < length:
        text = text[: whole + 1]
    return text


def without_images(draft: Draft, vocab_size: int) -> Draft:
    """Cut a draft before the first key of an image."""
    if max(draft.tokens) < vocab_size:
        return draft
    at = next(at for at, token in enumerate(draft.tokens) if token >= vocab_size)
    return replace(draft, tokens=draft.tokens[:at])
