"""Write the folder of a model, as mlx-lm loads it, from a GGUF file: Llama's architecture, and Gemma 3's.

Quantised weights become bfloat16. The tokenizer and the chat template are in the GGUF too.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from gguf import GGUFReader
from gguf.constants import TokenType
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
NAMES_OF = {
    "llama": NAMES | {"ffn_norm": "post_attention_layernorm"},
    "gemma3": NAMES
    | {
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
}


def write_folder(gguf: Path, folder: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer's files of a GGUF file into an empty folder.

    Raises KeyError for another architecture than those of NAMES_OF, and for another tokenizer than SmolLM2's
    and Gemma's.
    """
    reader = GGUFReader(gguf)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    weights = dict(read_weights(reader, fields))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    ids = {f"{name}_token_id": fields[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos")}
    config = make_config(fields) | ids | {"tie_word_embeddings": "lm_head.weight" not in weights}
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", ids)
    make_tokenizer(fields).save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", make_tokenizer_config(fields))
    if template := fields.get("tokenizer.chat_template"):
        (folder / "chat_template.jinja").write_text(template)


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def read_weights(reader: GGUFReader, fields: dict[str, Any]) -> Iterator[tuple[str, mx.array]]:
    """Yield each tensor in bfloat16, by its name in mlx-lm."""
    architecture = fields["general.architecture"]
    heads = {
        "attn_q": fields[f"{architecture}.attention.head_count"],
        "attn_k": fields[f"{architecture}.attention.head_count_kv"],
    }
    for tensor in reader.tensors:
        *block, name, _ = tensor.name.split(".")
        weight = dequantize(tensor.data, tensor.tensor_type)
        if architecture == "llama" and name in heads:
            weight = unpermute(weight, heads[name])
        if architecture == "gemma3" and name.endswith("norm"):
            # The GGUF has the factor itself; mlx-lm, like the original, adds 1 to what it loads.
            weight = weight - 1
        prefix = f"model.layers.{block[1]}." if block else ""
        yield f"{prefix}{NAMES_OF[architecture][name]}.weight", mx.array(weight).astype(mx.bfloat16)


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Order rows as the original does: llama.cpp interleaves the halves that a rotation pairs.

    weight: (rows, columns) of q or k, heads * head size rows.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def make_config(fields: dict[str, Any]) -> dict[str, Any]:
    architecture = fields["general.architecture"]
    of = {name.removeprefix(f"{architecture}."): value for name, value in fields.items()}
    config = {
        "model_type": "llama",
        "hidden_size": of["embedding_length"],
        "num_hidden_layers": of["block_count"],
        "intermediate_size": of["feed_forward_length"],
        "num_attention_heads": of["attention.head_count"],
        "num_key_value_heads": of["attention.head_count_kv"],
        "rms_norm_eps": of["attention.layer_norm_rms_epsilon"],
        "rope_theta": of["rope.freq_base"],
        "max_position_embeddings": of["context_length"],
        "vocab_size": len(of["tokenizer.ggml.tokens"]),
        "torch_dtype": "bfloat16",
    }
    if architecture == "gemma3":
        config |= {
            "model_type": "gemma3_text",
            "head_dim": of["attention.key_length"],
            # True of 270M, 1B, 4B and 12B.
            "query_pre_attn_scalar": of["attention.key_length"],
            "sliding_window": of["attention.sliding_window"],
            # Not in the GGUF; alike in all models of the family.
            "sliding_window_pattern": 6,
            "rope_local_base_freq": 10_000.0,
        }
    return config


def make_tokenizer(fields: dict[str, Any]) -> Tokenizer:
    """Build the tokenizer; its special tokens are those that the GGUF calls control tokens."""
    make = {"smollm": make_byte_level, "default": make_sentencepiece}[fields["tokenizer.ggml.pre"]]
    return make(fields)


def make_byte_level(fields: dict[str, Any]) -> Tokenizer:
    """Build SmolLM2's tokenizer: byte pairs, after digits are split one by one."""
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    add_tokens(tokenizer, tokens, fields)
    return tokenizer


def make_sentencepiece(fields: dict[str, Any]) -> Tokenizer:
    """Build Gemma 3's tokenizer, whose scores say which pair of tokens is merged first."""
    # User-defined runs of spaces are the only tokens that the GGUF writes with spaces.
    tokens = [token.replace(" ", "▁") for token in fields["tokenizer.ggml.tokens"]]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = find_merges(vocabulary, fields["tokenizer.ggml.scores"], fields["tokenizer.ggml.token_type"])
    unknown = tokens[fields["tokenizer.ggml.unknown_token_id"]]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps)
    bos_id = fields["tokenizer.ggml.bos_token_id"]
    bos = tokens[bos_id]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[bos, "$A"], pair=[bos, "$A", f"{bos}:1", "$B:1"], special_tokens=[(bos, bos_id)]
    )
    add_tokens(tokenizer, tokens, fields)
    return tokenizer


def find_merges(vocabulary: dict[str, int], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    """Find every pair of tokens that makes a token, in the order of Gemma's own tokenizer.json.

    vocabulary: ids by token. scores, types: by id. User-defined tokens come first, the longest before others.
    """
    merges = []
    for token, i in vocabulary.items():
        splits = [(token[:n], token[n:]) for n in range(1, len(token))]
        pairs = [(left, right) for left, right in splits if left in vocabulary and right in vocabulary]
        pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        score = 0.0 if types[i] == TokenType.USER_DEFINED else scores[i]
        merges += [(score, *pair) for pair in pairs]
    merges.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(left, right) for _, left, right in merges]


def add_tokens(tokenizer: Tokenizer, tokens: list[str], fields: dict[str, Any]) -> None:
    types = fields["tokenizer.ggml.token_type"]
    added = [
        AddedToken(token, special=kind == TokenType.CONTROL, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
    ]
    tokenizer.add_tokens(added)


def make_tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    tokens = fields["tokenizer.ggml.tokens"]
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    special = {
        f"{name}_token": tokens[fields[f"tokenizer.ggml.{field}_token_id"]] for name, field in names.items()
    }
    architecture = fields["general.architecture"]
    return special | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields[f"{architecture}.context_length"],
    }
