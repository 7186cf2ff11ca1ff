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

    inner: one of transformers' tokenizers.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._lock = threading.Lock()

    def encode(self, text: str, *, adds_specials: bool = False, splits_specials: bool = False) -> list[int]:
        """Return the ids of a text.

        adds_specials: add the special tokens around a prompt. splits_specials: text that spells a special
            token is encoded as other text.
        """
        return self.encode_all([text], adds_specials=adds_specials, splits_specials=splits_specials)[0]

    def encode_all(
        self, texts: Sequence[str], *, adds_specials: bool = False, splits_specials: bool = False
    ) -> list[list[int]]:
        """Return the ids of each text. See encode()."""
        if self._has_own_way:
            options = {"split_special_tokens": True} if splits_specials else {}
            with self._lock:
                return [
                    list(self._inner(text, add_special_tokens=adds_specials, **options)["input_ids"])
                    for text in texts
                ]
        backend = self._splitting if splits_specials else self._plain
        found = backend.encode_batch_fast(list(texts), add_special_tokens=adds_specials)
        return [list(one.ids) for one in found]

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
