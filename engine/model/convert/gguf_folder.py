"""Write a model's folder for mlx-lm from a GGUF file."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
from gguf.constants import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from reprise.engine.model.convert.gguf_file import (
    FLOATS,
    GgufFile,
    Weight,
    convert_weight,
    find_dtype,
    first_line,
    make_config,
    plan_weights,
    quantization_of,
)
from reprise.engine.model.convert.sources import ConvertError, DType, Options, Report
from reprise.engine.model.loading import DEQUANTISED_FROM

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = pre_tokenizers.Split(Regex(rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}"), "isolated")
_QWEN2 = pre_tokenizers.Split(Regex(rf"{_WORDS}|\p{{N}}|{_REST}"), "isolated")
SPLITS: dict[str, pre_tokenizers.PreTokenizer | None] = {
    "gpt-2": None,
    "smollm": pre_tokenizers.Digits(individual_digits=True),
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": pre_tokenizers.Split(Regex(_TEKKEN), "isolated"),
}
"""How text is split before byte pairs are merged, by the name in the file."""

_WITH_GPT2 = ("gpt-2", "smollm")
"""Splits after which text is also split as GPT-2 does it."""

_WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "tekken")
"""Splits whose tokenizers take a part of a text that is a token as it is, whatever the merges say."""

_MAX_PIECE = 1000
"""Maximum characters of a SentencePiece token, of which every split is tried."""

_ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>", "<|end|>",
)  # fmt: skip
"""Control tokens that end an answer, whichever of them the file names."""


def make_tokenizer(gguf: GgufFile) -> Tokenizer:
    """Build a file's tokenizer. Raises ConvertError if its kind is unknown or its fields disagree."""
    try:
        return _make_tokenizer(gguf)
    except ConvertError:
        raise
    # The tokenizers library raises Exception itself.
    except Exception as fault:
        raise gguf.refusal(f"has a tokenizer that cannot be built ({first_line(fault)})") from fault


def _make_tokenizer(gguf: GgufFile) -> Tokenizer:
    kind = gguf.field("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _make_byte_level(gguf)
    elif kind == "llama":
        tokenizer = _make_sentencepiece(gguf)
    else:
        raise gguf.refusal(
            f"has a tokenizer of the kind {kind}, and only gpt2 (byte pairs) and llama (SentencePiece) are"
        )
    bos_id = gguf.token_id("bos")
    if _adds_bos(gguf) and gguf.field("tokenizer.ggml.bos_token_id") == bos_id:
        bos = gguf.field("tokenizer.ggml.tokens")[bos_id]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", f"{bos}:1", "$B:1"], special_tokens=[(bos, bos_id)]
        )
    _add_tokens(tokenizer, gguf)
    return tokenizer


def make_tokenizer_config(gguf: GgufFile) -> dict[str, Any]:
    """Return the content of the model's tokenizer_config.json."""
    tokens = gguf.field("tokenizer.ggml.tokens")
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {name: gguf.token_id(field) for name, field in names.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": gguf.count("context_length"),
        **{f"{name}_token": tokens[i] for name, i in ids.items() if i is not None},
    }


def find_token_ids(gguf: GgufFile) -> dict[str, Any]:
    """Return the ids that begin a text and end an answer, for config.json and generation_config.json."""
    tokens, kinds = gguf.field("tokenizer.ggml.tokens"), gguf.field("tokenizer.ggml.token_type")
    named = [gguf.token_id(name) for name in ("eos", "eot", "eom")]
    control = {token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.CONTROL}
    known = [tokens.index(token) for token in _ENDS if token in control]
    eos = list(dict.fromkeys(i for i in (*named, *known) if i is not None))
    bos = gguf.token_id("bos")
    return {"eos_token_id": eos} | ({} if bos is None else {"bos_token_id": bos})


def _adds_bos(gguf: GgufFile) -> bool:
    default = (
        gguf.field("tokenizer.ggml.model") == "llama" or gguf.fields["tokenizer.ggml.pre"] in _WHOLE_WORDS
    )
    return bool(gguf.fields.get("tokenizer.ggml.add_bos_token", default))


def _make_byte_level(gguf: GgufFile) -> Tokenizer:
    tokens = gguf.field("tokenizer.ggml.tokens")
    split = gguf.field("tokenizer.ggml.pre")
    if split not in SPLITS:
        raise gguf.refusal(f"has a tokenizer that splits as {split}, and only {', '.join(SPLITS)} are known")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ", 1)) for merge in gguf.field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split in _WHOLE_WORDS))
    if SPLITS[split] is _QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    first = SPLITS[split]
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split in _WITH_GPT2)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, bytes_of] if first else [bytes_of])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _make_sentencepiece(gguf: GgufFile) -> Tokenizer:
    # User-defined runs of spaces are the only tokens that the file writes with spaces.
    tokens = [token.replace(" ", "▁") for token in gguf.field("tokenizer.ggml.tokens")]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    scores, kinds = gguf.field("tokenizer.ggml.scores"), gguf.field("tokenizer.ggml.token_type")
    if (longest := max(map(len, tokens))) > _MAX_PIECE:
        raise gguf.refusal(f"has a token of {longest} characters, more than {_MAX_PIECE}")
    merges = find_merges(vocabulary, scores, kinds)
    unknown = tokens[gguf.token_id("unknown") or 0]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if gguf.fields.get("tokenizer.ggml.add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend("▁"))
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def find_merges(vocabulary: dict[str, int], scores: list[float], kinds: list[int]) -> list[tuple[str, str]]:
    """Find every pair of tokens that makes a token, in the order in which they are merged.

    vocabulary: token -> id. scores, kinds: by id. User-defined tokens come first, longer ones before shorter.
    """
    merges = []
    for token, i in vocabulary.items():
        splits = [(token[:n], token[n:]) for n in range(1, len(token))]
        pairs = [(left, right) for left, right in splits if left in vocabulary and right in vocabulary]
        pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        score = 0.0 if kinds[i] == TokenType.USER_DEFINED else scores[i]
        merges += [(score, *pair) for pair in pairs]
    merges.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(left, right) for _, left, right in merges]


def _add_tokens(tokenizer: Tokenizer, gguf: GgufFile) -> None:
    kinds = gguf.field("tokenizer.ggml.token_type")
    added = [
        AddedToken(tokenizer.id_to_token(i), special=kind != TokenType.USER_DEFINED, normalized=False)
        for i, kind in enumerate(kinds)
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
    ]
    tokenizer.add_tokens(added)


_TEMPLATE = "tokenizer.chat_template"
_TEMPLATE_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")
"""A name without a dot: that of a template, once the beginning is gone, and a file's for any system."""

SHARD_BYTES = 4 << 30
"""Bytes of weights that are in memory at a time, and in one file."""


def bytes_needed(gguf: GgufFile, options: Options) -> int:
    """Return the bytes that the weights will take on disk. Raises ConvertError."""
    weights = plan_weights(gguf, options)
    dtype = find_dtype(weights, options)
    return sum(weight.num_bytes(dtype) for weight in weights)


def main_quantisation(gguf: GgufFile) -> str | None:
    """Return the name of the type in which most numbers are quantised, such as "Q4_1"; None if none are."""
    sizes: Counter[str] = Counter()
    for tensor in gguf.tensors:
        if tensor.tensor_type not in FLOATS:
            sizes[tensor.tensor_type.name] += int(tensor.n_elements)
    return max(sizes, key=lambda kind: sizes[kind], default=None)


def write_folder(gguf: GgufFile, folder: Path, options: Options, report: Report) -> None:
    """Write a model's configuration, tokenizer and weights into an empty folder.

    Raises OSError, or ConvertError, before the first weight is written, if the model cannot be converted.
    """
    weights = plan_weights(gguf, options)
    dtype = find_dtype(weights, options)
    tokenizer = make_tokenizer(gguf)
    paths = {weight.path: weight for weight in weights}
    vocab_size = int(paths["model.embed_tokens"].tensor.shape[1])
    ids = find_token_ids(gguf)
    config = make_config(gguf, "lm_head" not in paths, vocab_size) | ids | {"torch_dtype": dtype}
    if quantization := quantization_of(weights):
        # transformers reads the second name, mlx-lm both.
        config |= {"quantization": quantization, "quantization_config": quantization}
    if options.dequantize and (kind := main_quantisation(gguf)):
        config[DEQUANTISED_FROM] = kind
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", ids | dict(options.sampling))
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", make_tokenizer_config(gguf))
    _write_templates(folder, gguf)
    write_shards(folder, _read(gguf, weights, dtype, report))


def _write_templates(folder: Path, gguf: GgufFile) -> None:
    """Write a file's chat template, and named ones, such as tool_use, where transformers looks for them."""
    if template := gguf.fields.get(_TEMPLATE):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    named = {name.removeprefix(f"{_TEMPLATE}."): text for name, text in gguf.fields.items()}
    # Without one that has no name, none of them is the default.
    for name, text in named.items() if template else ():
        if _TEMPLATE_NAME.fullmatch(name) and isinstance(text, str):
            place = folder / "additional_chat_templates"
            place.mkdir(exist_ok=True)
            (place / f"{name}.jinja").write_text(text, encoding="utf-8")


def _read(
    gguf: GgufFile, weights: list[Weight], dtype: DType, report: Report
) -> Iterator[tuple[str, mx.array]]:
    total = sum(int(weight.tensor.n_bytes) for weight in weights)
    done = 0
    report(done, total)
    for weight in weights:
        for name, array in convert_weight(gguf, weight, dtype):
            mx.eval(array)
            yield name, array
        done += int(weight.tensor.n_bytes)
        report(done, total)


def write_shards(folder: Path, arrays: Iterator[tuple[str, mx.array]]) -> None:
    """Write weights by name into files of about SHARD_BYTES, with an index if there are several."""
    shards: list[list[str]] = []
    shard: dict[str, mx.array] = {}
    total = num_written = 0

    def flush() -> None:
        shards.append(list(shard))
        mx.save_safetensors(
            str(folder / f"part-{len(shards)}.safetensors"), shard, metadata={"format": "mlx"}
        )
        shard.clear()

    for name, array in arrays:
        shard[name] = array
        total += array.nbytes
        if total - num_written >= SHARD_BYTES:
            flush()
            num_written = total
    if shard:
        flush()
    if len(shards) == 1:
        (folder / "part-1.safetensors").rename(folder / "model.safetensors")
        return
    files = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        (folder / f"part-{number}.safetensors").rename(folder / file)
        files.update(dict.fromkeys(names, file))
    _write_json(
        folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": files}
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
