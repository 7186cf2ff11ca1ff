"""Make mlx-lm and transformers read a tokenizer.json once, in Rust, without Python loops over the vocabulary.

A vocabulary has up to 262,144 tokens, and as many merges or more. mlx-lm parses the file in Python to choose
a detokenizer. transformers parses it again to pass vocabulary and merges to the tokenizer's class, which
builds another model from them. Here the tokenizers library parses the file, the class gets its model, and
tokens are looked up one by one. The resulting tokenizer is the same.
"""

import copy
import hashlib
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, TypeVar

from mlx_lm import tokenizer_utils
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from transformers import tokenization_utils_base, tokenization_utils_tokenizers

log = logging.getLogger("reprise.engine")

AFFIXES: dict[str, Any] = {"continuing_subword_prefix": None, "end_of_word_suffix": None}
"""Options of a BPE model on which its merges depend. Usually they are empty."""

OPTIONS = AFFIXES | {
    "dropout": None,
    "unk_token": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}
"""All options of a BPE model besides its vocabulary and its merges, with the defaults."""

FROM_FILE = object()
"""Stands for the vocabulary and the merges of a file."""


Loaded = TypeVar("Loaded")


class NotSharedError(Exception):
    """A tokenizer's class cannot use an already parsed model."""


def read_once(load: Callable[[], Loaded]) -> tuple[Loaded, str]:
    """Return the tokenizer that mlx-lm loads, and a digest of its vocabulary's file; "" if that is unknown.

    For the only thread that loads models.
    load: loads a tokenizer, perhaps with its model. If it raises, as with unusual tokenizer classes, it is
        called again without the replacements.
    """
    reader = Reader()
    base = tokenization_utils_tokenizers
    try:
        with ExitStack() as stack:
            replace = partial(_replace, stack)
            kind: Any = base.TokenizersBackend
            original = kind.convert_to_native_format.__func__
            # Without a decoder mlx-lm chooses its plain detokenizer. The engine has one of its own.
            replace(tokenizer_utils, "json", SimpleNamespace(load=lambda _: {}))
            replace(tokenization_utils_base, "json", SimpleNamespace(**vars(json) | {"load": reader.load}))
            replace(tokenization_utils_base, "copy", SimpleNamespace(deepcopy=copy_options))
            replace(base, "TokenizerFast", Backends(reader))
            convert = classmethod(partial(_convert, reader, replace, original))
            replace(kind, "convert_to_native_format", convert)
            replace(kind, "get_vocab", lambda tokenizer: Tokens(tokenizer.backend_tokenizer))
            return load(), reader.digest
    # That class may raise anything.
    except Exception as fault:
        log.debug("loading again, with the tokenizer in the usual way: %r", fault)
    return load(), ""


def describe_backend(backend: Backend) -> str:
    """Describe a tokenizer without its model's vocabulary and merges."""
    parts = (backend.normalizer, backend.pre_tokenizer, backend.post_processor, backend.decoder)
    states = [part and part.__getstate__() for part in parts]
    options = [getattr(backend.model, name, None) for name in OPTIONS]
    added = sorted(backend.get_added_tokens_decoder().items())
    return repr((type(backend.model).__name__, states, options, added, backend.padding, backend.truncation))


def _replace(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set an attribute of a module or a class until the stack is closed."""
    own = vars(owner)
    stack.callback(setattr, owner, name, own[name]) if name in own else stack.callback(delattr, owner, name)
    setattr(owner, name, value)


class Reader:
    """Parses each tokenizer file once: load() and take() share a tokenizer, until take() hands it over.

    digest: SHA-256 of the file, if exactly one tokenizer was taken; else "".
    """

    def __init__(self) -> None:
        self.digest = ""
        self._num_taken = 0
        self._parsed: dict[str, Backend] = {}

    def _read(self, path: str) -> Backend:
        if path not in self._parsed:
            self._parsed[path] = parse(path)
        return self._parsed[path]

    def load(self, file: IO[str]) -> Any:
        """Replace json.load(): return only the added tokens of a tokenizer.json."""
        if Path(file.name).name != "tokenizer.json":
            return json.load(file)
        added = self._read(file.name).get_added_tokens_decoder()
        return {"added_tokens": [{"id": token, **added[token].__getstate__()} for token in sorted(added)]}

    def take(self, path: str) -> Backend:
        """Return a file's tokenizer, which the caller owns and may change."""
        self._read(path)
        self._num_taken += 1
        is_only = self._num_taken == 1
        self.digest = hashlib.sha256(Path(path).read_bytes()).hexdigest() if is_only else ""
        return self._parsed.pop(path)


def parse(path: str) -> Backend:
    """Parse a tokenizer's file."""
    return Backend.from_file(path)


def copy_options(options: dict[str, Any]) -> dict[str, Any]:
    """Copy all of a tokenizer's options but its added tokens, of which there may be thousands."""
    added = (options.get("added_tokens_decoder") or {}).values()
    return copy.deepcopy(options, {id(token): token for token in added})


class Backends:
    """Stands in for tokenizers.Tokenizer."""

    def __init__(self, reader: Reader) -> None:
        self.from_file = reader.take

    def __call__(self, *arguments: Any) -> Backend:
        """Make a tokenizer from a model."""
        return Backend(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(Backend, name)


class Tokens(Mapping[str, int]):
    """A vocabulary for lookups of single tokens."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getitem__(self, token_string: str) -> int:
        token = self._backend.token_to_id(token_string)
        if token is None:
            raise KeyError(token_string)
        return token

    def __iter__(self) -> Iterator[str]:
        return iter(self._backend.get_vocab(with_added_tokens=True))

    def __len__(self) -> int:
        return self._backend.get_vocab_size(with_added_tokens=True)


def _convert(
    reader: Reader, replace: Callable[..., Any], original: Callable[..., Any], kind: Any, **given: Any
) -> dict[str, Any]:
    """Replace TokenizersBackend.convert_to_native_format(), which parses the file in Python.

    kind: the tokenizer's class. given: its arguments; returned with the file's additions.
    """
    path, makers = given.get("tokenizer_file"), _model_makers(kind)
    if path is None or given.get("trust_remote_code") or kind.model is not BPE or not makers:
        return dict(original(kind, **given))
    backend = reader.take(path)
    for module in makers:
        replace(module, "BPE", partial(_make_model, backend))
    given = {key: value for key, value in given.items() if key not in ("tokenizer_file", "trust_remote_code")}
    given |= {"vocab": FROM_FILE, "merges": FROM_FILE, "post_processor": backend.post_processor}
    for name in ("padding", "truncation"):
        settings = getattr(backend, name)
        given |= {f"tokenizer_{name}": settings}
        given |= {} if settings is None else {f"_json_{name}": settings}
    return given


def _model_makers(kind: Any) -> list[Any]:
    """Return the modules of the classes that make a tokenizer's model themselves."""
    own = kind.mro()[: kind.mro().index(tokenization_utils_tokenizers.TokenizersBackend)]
    modules = {sys.modules[one.__module__] for one in own if "__init__" in vars(one)}
    return [module for module in modules if getattr(module, "BPE", None) is BPE]


def _make_model(backend: Backend, vocab: Any = None, merges: Any = None, **options: Any) -> BPE:
    """Replace BPE(): return the file's model with other options. Raises NotSharedError."""
    if vocab is not FROM_FILE:
        return BPE(vocab, merges, **options)
    model: Any = backend.model
    has_affix = any(options.get(name) or getattr(model, name) for name in AFFIXES)
    if merges is not FROM_FILE or not isinstance(model, BPE) or has_affix or options.keys() - OPTIONS.keys():
        raise NotSharedError("the tokenizer's class makes a model of its own")
    for name, default in OPTIONS.items():
        setattr(model, name, options.get(name, default))
    return model
