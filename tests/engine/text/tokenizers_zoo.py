"""Tiny tokenizers of many kinds, trained in memory in milliseconds and wrapped as the engine uses them."""

import json
from functools import cache

from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from reprise.engine.text.tokenizer import Tokenizer

ENGLISH = (
    "The quick brown fox jumps over the lazy dog.",
    "  The end of the line, and the rest of it: twenty-three words, or thereabouts.",
    "It's 10 o'clock; they'll be there in 25 minutes, won't they?",
    "def add(left, right):\n    # the sum of both\n    return left + right\n\n\nadd(1, 22)\n",
    'for key in {"name": "value", "other": [1, 2, 3]}:\n\tprint(key)\n',
    "the of and the of and in the house of the king of the hill",
)
POLISH = (
    "Zażółć gęślą jaźń, żółty żółw.",
    "W Szczebrzeszynie chrząszcz brzmi w trzcinie i Szczebrzeszyn z tego słynie.",
    "Dzień dobry! Proszę o świeże bułki, dwieście gramów sera … i „kawę”.",
    "Łódź, Kraków, Gdańsk: wszędzie pięknie, a tu łąka i księżyc.",
)
SPACE = "\u2581"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def wrap(backend: Backend, vocab_size: int | None = None, **specials: str) -> Tokenizer:
    """Wrap a tokenizer as the engine uses it.

    vocab_size: of the model, if it differs from the tokenizer's. specials: eos_token, bos_token, unk_token.
    """
    inner = PreTrainedTokenizerFast(tokenizer_object=backend, **specials)
    return Tokenizer(TokenizerWrapper(inner), vocab_size or backend.get_vocab_size())


def byte_level(polish: bool = False, prefix_space: bool = False, size: int = 500) -> Backend:
    """Train byte-level BPE that splits at words, like GPT-2's."""
    tokenizer = Backend(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|end|>", "<|start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(ENGLISH + POLISH * polish, trainer)
    return tokenizer


def sentencepiece(
    scheme: str = "first",
    polish: bool = True,
    over_spaces: bool = False,
    has_bytes: bool = True,
    specials: tuple[str, ...] = ("<unk>", "<s>", "</s>"),
) -> Backend:
    """Train BPE with marks for spaces and byte fallback, like SentencePiece.

    scheme: where a space is added in front of text: "first" or "never" by the pre-tokenizer, "legacy" by the
    normalizer.
    over_spaces: whether tokens may cross spaces.
    """
    tokenizer = Backend(models.BPE(byte_fallback=has_bytes, unk_token="<unk>", fuse_unk=True))
    words = [pre_tokenizers.Split(Regex(r"\n *| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s"), "isolated")]
    if scheme == "legacy":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
        )
        words = [pre_tokenizers.Split(Regex(rf"{SPACE}?[^{SPACE}\n]+|\n|{SPACE}"), "isolated")]
    else:
        words.append(pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False))
    if not over_spaces:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)
    elif scheme != "legacy":
        tokenizer.pre_tokenizer = words[-1]
    strip = [decoders.Strip(" ", 1, 0)] * (scheme != "never")
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    tokenizer.decoder = decoders.Sequence(parts)
    trainer = trainers.BpeTrainer(
        vocab_size=700 if has_bytes else 400,
        special_tokens=[*specials, *(BYTES if has_bytes else [])],
        initial_alphabet=[chr(code) for code in range(33, 127)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(ENGLISH + POLISH * polish, trainer)
    return _without_added(tokenizer, BYTES)


def unigram(has_bytes: bool = False) -> Backend:
    """Train Unigram that splits before spaces and loses line breaks, like T5's."""
    tokenizer = Backend(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.decoder = decoders.Metaspace()
    if has_bytes:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    trainer = trainers.UnigramTrainer(
        vocab_size=200,
        special_tokens=["<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        initial_alphabet=[chr(code) for code in range(33, 127)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(ENGLISH + POLISH, trainer)
    if not has_bytes:
        return tokenizer
    written = json.loads(tokenizer.to_str())
    written["model"]["vocab"] += [[token_string, -20.0] for token_string in BYTES]
    written["model"]["byte_fallback"] = True
    return Backend.from_str(json.dumps(written))


def wordpiece() -> Backend:
    """Train WordPiece, whose tokens do not record spaces."""
    tokenizer = Backend(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[UNK]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(ENGLISH, trainer)
    return tokenizer


def characters(has_bytes: bool = True) -> Backend:
    """Make a tokenizer with one token for each character of the training text."""
    token_strings = sorted(set("".join(ENGLISH + POLISH)))
    vocab = {
        token_string: at
        for at, token_string in enumerate(["<unk>", "</s>", *BYTES * has_bytes, *token_strings])
    }
    tokenizer = Backend(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=has_bytes))
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def with_normalizer(backend: Backend, normalizer: normalizers.Normalizer) -> Backend:
    """Add a normalizer, which changes text before encoding."""
    backend.normalizer = normalizer
    return backend


def with_spaces(backend: Backend) -> Backend:
    """Add tokens for runs of spaces that are text, beside tokens of the same bytes; and a marker."""
    runs = [AddedToken(" " * count, special=False, normalized=False) for count in range(2, 9)]
    backend.add_tokens([*runs, AddedToken("<think>", special=False, normalized=False)])
    return backend


def with_beginning(backend: Backend, token_string: str) -> Backend:
    """Add a beginning-of-sequence token to every text that is encoded with specials."""
    backend.post_processor = processors.TemplateProcessing(
        single=f"{token_string} $A", special_tokens=[(token_string, backend.token_to_id(token_string))]
    )
    return backend


def _without_added(backend: Backend, token_strings: list[str]) -> Backend:
    """Turn added tokens into plain model tokens: trainers can only be given tokens to keep as specials."""
    written = json.loads(backend.to_str())
    written["added_tokens"] = [
        entry for entry in written["added_tokens"] if entry["content"] not in token_strings
    ]
    return Backend.from_str(json.dumps(written))


GPT = {"eos_token": "<|end|>"}
LLAMA = {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
PLAIN = {"eos_token": "</s>", "unk_token": "<unk>"}

EXACT = {
    "byte-level": lambda: wrap(byte_level(), **GPT),
    "byte-level-polish": lambda: wrap(byte_level(polish=True, size=700), **GPT),
    "byte-level-prefix-space": lambda: wrap(byte_level(prefix_space=True), **GPT),
    "byte-level-spaces": lambda: wrap(with_spaces(byte_level()), **GPT),
    "byte-level-beginning": lambda: wrap(
        with_beginning(byte_level(), "<|start|>"), bos_token="<|start|>", **GPT
    ),
    "sentencepiece-first": lambda: wrap(sentencepiece(), **LLAMA),
    "sentencepiece-never": lambda: wrap(sentencepiece("never", polish=False), **LLAMA),
    "sentencepiece-legacy": lambda: wrap(with_beginning(sentencepiece("legacy"), "<s>"), **LLAMA),
    "sentencepiece-over-spaces": lambda: wrap(sentencepiece("legacy", over_spaces=True), **LLAMA),
    "unigram-bytes": lambda: wrap(unigram(has_bytes=True), **PLAIN),
    "characters": lambda: wrap(characters(), **PLAIN),
}
"""Kinds that reproduce all text, except the mark that some use for spaces."""

LOSSY = {
    "sentencepiece-no-bytes": lambda: wrap(sentencepiece(has_bytes=False), **LLAMA),
    "unigram": lambda: wrap(unigram(), **PLAIN),
    "characters-no-bytes": lambda: wrap(characters(has_bytes=False), **PLAIN),
    "lower-case": lambda: wrap(with_normalizer(byte_level(), normalizers.Lowercase()), **GPT),
    "nfkc": lambda: wrap(with_normalizer(byte_level(polish=True), normalizers.NFKC()), **GPT),
}
"""Kinds that lose part of some texts."""

KINDS = EXACT | LOSSY


@cache
def make(kind: str) -> Tokenizer:
    """Make a tokenizer of KINDS, once."""
    return KINDS[kind]()
