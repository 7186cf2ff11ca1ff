"""Encode text with a tokenizer on several threads at once.

transformers sets its tokenizer up anew at every call, so two calls must not run at once, and makes lists of
several numbers for each token while no other thread of the process runs.
"""

import json
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from reprise.engine.interface.errors import UnbrokenTextError
from reprise.engine.interface.wanted import check_wanted
from reprise.engine.text.tokens.slicing import MAX_UNBROKEN, SLICE_CHARACTERS, Slicing, find_slicing


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
    """Encodes text into the ids that transformers gives. Any thread may use it; others run meanwhile.

    Long texts are encoded in slices, if the tokenizer allows that; work that nobody waits for any more (see
    engine/interface/wanted.py) ends between two of them.

    inner: one of transformers' tokenizers. slice_characters: maximum length of a slice with borders in it.
    """

    def __init__(self, inner: Any, slice_characters: int = SLICE_CHARACTERS) -> None:
        self._inner = inner
        self._slice_characters = slice_characters
        self._lock = threading.Lock()
        self._around: tuple[tuple[int, ...], tuple[int, ...]] = (), ()

    def encode(self, text: str, *, adds_specials: bool = False, splits_specials: bool = False) -> list[int]:
        """Return the ids of a text.

        adds_specials: add the special tokens around a prompt. splits_specials: text that spells a special
            token is encoded as other text.
        """
        return self.encode_all([text], adds_specials=adds_specials, splits_specials=splits_specials)[0]

    def encode_all(
        self, texts: Sequence[str], *, adds_specials: bool = False, splits_specials: bool = False
    ) -> list[list[int]]:
        """Return the ids of each text. See encode(). Raises UnbrokenTextError if one is too long at once."""
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
        at = next(
            (at for at in range(len(whole.ids)) if whole.ids[at : at + len(plain.ids)] == plain.ids), None
        )
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
