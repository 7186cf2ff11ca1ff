"""A folder converted from a GGUF file computes what the model in the file computes."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGMLQuantizationType as Kind
from gguf.constants import GGUFValueType
from gguf.quants import dequantize
from mlx.utils import tree_flatten

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.model.convert import gguf_folder
from reprise.engine.model.convert.conversion import convert
from reprise.engine.model.convert.gguf_file import unpack
from reprise.engine.model.convert.sources import ConvertError, Options
from tests.combinations import spread
from tests.engine.model.convert.gguf_files import (
    MODEL_TYPES,
    SCALES_AT,
    interleaved,
    model_of,
    tensor_name,
    write_gguf,
)

TOKENS = mx.array([[5, 900, 17, 4000, 33, 5, 900, 61, 8, 2100, 77, 12, 950, 3, 41, 6, 19, 23, 1000, 51]])
"""More than the sliding window of 16."""

FLOATS = {Kind.F32: mx.float32, Kind.F16: mx.float16, Kind.BF16: mx.bfloat16}
KEPT = {Kind.Q4_0: 4, Kind.Q4_1: 4, Kind.Q8_0: 8}
KEPT_PRODUCTS = {Kind.Q4_K: 4, Kind.Q5_K: 5}
"""Types that MLX's own reader does not know, and MLX holds as they are."""

WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
"""Sizes with whole blocks of 256 numbers."""


def converted(source: Path, options: Options | None = None) -> Path:
    folder = source.with_name("folder")
    convert(str(source), folder, options or Options(), lambda _done, _total: None)
    return folder


def logits(model: Any) -> np.ndarray:
    return np.array(model(TOKENS).astype(mx.float32))


def arrays_of(folder: Path) -> dict[str, mx.array]:
    found: dict[str, mx.array] = {}
    for file in folder.glob("model*.safetensors"):
        found |= mx.load(str(file))
    return found


@pytest.mark.parametrize(
    ("architecture", "kind"), spread(list(MODEL_TYPES), {kind.name: kind for kind in FLOATS})
)
def test_logits_of_floats_are_the_models_own(tmp_path: Path, architecture: str, kind: Kind) -> None:
    folder = converted(write_gguf(tmp_path / "model.gguf", architecture, kind))
    model = model_of(architecture)
    model.set_dtype(FLOATS[kind])
    loaded, _ = mlx_lm.load(str(folder))
    assert loaded.model_type == MODEL_TYPES[architecture]
    assert np.array_equal(logits(loaded), logits(model))


@pytest.mark.parametrize(
    ("architecture", "kind"), spread(list(MODEL_TYPES), {kind.name: kind for kind in KEPT})
)
def test_logits_of_kept_weights_are_those_of_what_mlx_itself_reads(
    tmp_path: Path, architecture: str, kind: Kind
) -> None:
    """MLX's own reader of GGUF knows neither the order of Llama's rows nor Gemma's norms."""
    source = write_gguf(tmp_path / "model.gguf", architecture, kind)
    folder = converted(source, Options(dtype="float32"))
    read: Any = mx.load(str(source))
    model = model_of(architecture)
    nn.quantize(model, group_size=32, bits=KEPT[kind])
    flat: Any = tree_flatten(model.parameters())
    weights = {}
    for name, own in flat:
        array = read[tensor_name(architecture, name)]
        array = array.astype(mx.float32) if array.dtype == mx.float16 else array
        if architecture == "gemma3" and "norm" in name:
            array = array - 1
        for module, heads in (("q_proj", 4), ("k_proj", 2)):
            if architecture == "llama" and module in name:
                order = np.argsort(interleaved(np.arange(len(array)), heads))
                array = array[mx.array(order)]
        assert array.shape == own.shape
        weights[name] = array
    model.load_weights(list(weights.items()))
    assert np.array_equal(logits(mlx_lm.load(str(folder))[0]), logits(model))


@pytest.mark.parametrize("kind", KEPT, ids=lambda kind: kind.name)
def test_kept_weights_are_the_numbers_that_llama_cpp_means(kind: Kind, tmp_path: Path) -> None:
    reader = GGUFReader(write_gguf(tmp_path / "model.gguf", "qwen3", kind))
    tensor = next(tensor for tensor in reader.tensors if tensor.name == "blk.0.attn_q.weight")
    numbers, scales, biases = map(mx.array, unpack(tensor.data, kind))
    floats = (scales.astype(mx.float32), biases.astype(mx.float32))
    meant = mx.dequantize(numbers, *floats, group_size=32, bits=KEPT[kind])
    assert np.array_equal(np.array(meant), dequantize(tensor.data, kind))


@pytest.mark.parametrize("kind", KEPT_PRODUCTS, ids=lambda kind: kind.name)
def test_k_quants_that_mlx_can_hold_are_the_numbers_that_llama_cpp_means(kind: Kind, tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "model.gguf", "qwen3", kind, **WIDE)
    tensor = next(tensor for tensor in GGUFReader(source).tensors if tensor.name == "blk.0.attn_q.weight")
    numbers, scales, biases = map(mx.array, unpack(tensor.data, kind))
    meant = mx.dequantize(numbers, scales, biases, group_size=32, bits=KEPT_PRODUCTS[kind])
    # The library subtracts the least number, where MLX adds a bias.
    assert np.allclose(np.array(meant), dequantize(tensor.data, kind), rtol=1e-6, atol=1e-7)
    folder = converted(source)
    config = json.loads((folder / "config.json").read_text())
    assert config["quantization"] == {"group_size": 32, "bits": KEPT_PRODUCTS[kind]}
    assert np.isfinite(logits(mlx_lm.load(str(folder))[0])).all()


@pytest.mark.parametrize("kind", SCALES_AT, ids=lambda kind: kind.name)
def test_quantised_weights_are_dequantised_if_asked(kind: Kind, tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "model.gguf", "qwen3", kind, **WIDE)
    folder = converted(source, Options(dequantize=True, dtype="float32"))
    tensors = {tensor.name: tensor for tensor in GGUFReader(source).tensors}
    for name, array in arrays_of(folder).items():
        tensor = tensors[tensor_name("qwen3", name)]
        assert np.array_equal(np.array(array), dequantize(tensor.data, tensor.tensor_type))
    assert "quantization" not in json.loads((folder / "config.json").read_text())
    assert np.isfinite(logits(mlx_lm.load(str(folder))[0])).all()


@pytest.mark.parametrize(
    ("kind", "options", "bits"),
    [
        (Kind.Q6_K, Options(bits=4), 4),
        (Kind.Q6_K, Options(bits=8), 8),
        (Kind.Q6_K, Options(), 8),
        (Kind.Q3_K, Options(), 4),
        (Kind.Q2_K, Options(), 3),
        (Kind.Q6_K, Options(dequantize=True), None),
    ],
)
def test_weights_are_quantised_as_asked(
    kind: Kind, options: Options, bits: int | None, tmp_path: Path
) -> None:
    folder = converted(write_gguf(tmp_path / "model.gguf", "qwen3", kind, **WIDE), options)
    quantization = json.loads((folder / "config.json").read_text()).get("quantization")
    assert quantization == (bits and {"bits": bits, "group_size": 64 if options.bits else 32})
    assert np.isfinite(logits(mlx_lm.load(str(folder))[0])).all()


def test_kept_weights_stay_unless_fewer_bits_are_asked_for(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "model.gguf", "qwen3", Kind.Q8_0)
    kept = converted(source, Options(bits=8))
    assert json.loads((kept / "config.json").read_text())["quantization"] == {"bits": 8, "group_size": 32}
    kept.rename(tmp_path / "kept")
    fewer = converted(source, Options(bits=4))
    assert json.loads((fewer / "config.json").read_text())["quantization"] == {"bits": 4, "group_size": 64}


def test_types_of_weights_may_differ_between_layers(tmp_path: Path) -> None:
    """As in most files: embeddings have more bits."""
    values = np.array(model_of("qwen3").lm_head.weight)
    source = write_gguf(
        tmp_path / "model.gguf", "qwen3", Kind.Q4_0, tie_word_embeddings=True, extra={"output.weight": values}
    )
    config = json.loads((converted(source) / "config.json").read_text())
    assert config["quantization"] == {"bits": 4, "group_size": 32}
    assert config["tie_word_embeddings"] is False
    assert np.isfinite(logits(mlx_lm.load(str(tmp_path / "folder"))[0])).all()


def test_on_the_cpu_scales_are_float32_and_exact(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "model.gguf", "qwen3", Kind.Q4_1)
    scales = arrays_of(converted(source))["model.layers.0.mlp.up_proj.scales"]
    assert scales.dtype == (mx.float16 if mx.default_device().type == mx.DeviceType.gpu else mx.float32)
    read: Any = mx.load(str(source))
    assert mx.array_equal(scales, read["blk.0.ffn_up.scales"].astype(scales.dtype))


def test_large_models_are_written_in_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_folder, "SHARD_BYTES", 1 << 20)
    folder = converted(write_gguf(tmp_path / "model.gguf"))
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(file.name for file in folder.glob("*.safetensors"))
    assert len(files) > 1
    assert sorted(set(index["weight_map"].values())) == files
    assert np.array_equal(logits(mlx_lm.load(str(folder))[0]), logits(model_of("llama")))


def test_llama_3s_rotation_is_found_from_its_factors(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    theta, half = 500_000.0, 16
    wavelengths = 2 * np.pi * theta ** (np.arange(half) / half)
    factors = []
    for wavelength in wavelengths:
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192:
            factors.append(8.0)
        else:
            smooth = (8192 / wavelength - 1) / 3
            factors.append(1 / ((1 - smooth) / 8 + smooth))
    extra = {"rope_freqs.weight": np.array(factors, np.float32)}
    source = write_gguf(tmp_path / "model.gguf", rope_theta=theta, rope_scaling=None, extra=extra)
    folder = converted(source)
    assert json.loads((folder / "config.json").read_text())["rope_scaling"] == scaling
    model = model_of("llama", rope_theta=theta, rope_scaling=scaling)
    assert np.array_equal(logits(mlx_lm.load(str(folder))[0]), logits(model))


def test_a_model_in_several_parts_is_read_whole(tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "model-00001-of-00002.gguf", tie_word_embeddings=True)
    values = np.array(model_of("llama").lm_head.weight)
    with pytest.raises(ConvertError, match=r"parts, and .*00002-of-00002.gguf is missing; download it"):
        converted(first)
    writer = GGUFWriter(tmp_path / "model-00002-of-00002.gguf", "llama")
    writer.add_tensor("output.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    folder = converted(first)
    assert mx.array_equal(arrays_of(folder)["lm_head.weight"], mx.array(values))


def test_the_folder_has_tokenizer_template_and_ends(tmp_path: Path) -> None:
    folder = converted(write_gguf(tmp_path / "model.gguf"))
    _, tokenizer = mlx_lm.load(str(folder))
    text = "def area(side):\n\treturn side * 2  # żółć 😀"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (folder / "chat_template.jinja").read_text() == (BUNDLED_MODEL / "chat_template.jinja").read_text()
    ends = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    vocabulary = tokenizer.get_vocab()
    assert ends == [vocabulary["<|im_end|>"], vocabulary["<|endoftext|>"]]
    assert tokenizer.eos_token_ids == set(ends)


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes(tmp_path: Path) -> None:
    """A pair of a higher score is merged first; what no token has is spelt in bytes; texts begin with BOS."""
    special = ["<unk>", "<s>", "</s>"]
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["▁", "a", "b", "c", "ab", "bc", "▁a", "abc"]
    scores = [0.0] * 259 + [-10.0, -11.0, -12.0, -13.0, -2.0, -1.0, -3.0, -4.0]
    rest = 4096 - len(special) - len(raw) - len(pieces)
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": None,
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.tokens": [*special, *raw, *pieces, *(f"unused{i}" for i in range(rest))],
        "tokenizer.ggml.scores": scores + [-1000.0] * rest,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(pieces), *[5] * rest],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    folder = converted(write_gguf(tmp_path / "model.gguf", fields=fields))
    _, tokenizer = mlx_lm.load(str(folder))
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode("abc ab ż"))
    assert tokens == ["<s>", "▁a", "bc", "▁", "ab", "▁", "<0xC5>", "<0xBC>"]
    assert tokenizer.decode(tokenizer.encode("abc ab ż"), skip_special_tokens=True) == "abc ab ż"


BAD = {
    "has the architecture mamba": {"fields": {"general.architecture": "mamba"}},
    "has a tokenizer of the kind bert": {"fields": {"tokenizer.ggml.model": "bert"}},
    "has a tokenizer that splits as new-bpe": {"fields": {"tokenizer.ggml.pre": "new-bpe"}},
    "has a tokenizer that cannot be built (": {"fields": {"tokenizer.ggml.merges": ["a bcdefg"]}},
    "has another llama.attention.head_count_kv": {"fields": {"llama.attention.head_count_kv": [2, 1]}},
    "has no tokenizer.ggml.tokens": {"fields": {"tokenizer.ggml.tokens": None}},
    "has no llama.context_length": {"fields": {"llama.context_length": None}},
    "scales positions by longrope": {
        "fields": {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}
    },
    "scales positions by factors": {"extra": {"rope_freqs.weight": np.arange(1, 17, dtype=np.float32)}},
    "has the tensor blk.0.ffn_gate_exps": {
        "extra": {"blk.0.ffn_gate_exps.weight": np.ones((2, 32), np.float32)}
    },
    "has llama.attention.head_count 0, which": {"fields": {"llama.attention.head_count": 0}},
    "has llama.attention.head_count_kv 0, which": {"fields": {"llama.attention.head_count_kv": 0}},
    "has llama.embedding_length 'wide', which": {"fields": {"llama.embedding_length": "wide"}},
    "is no llama as mlx-lm has it (config.json has num_hidden_layers 2000000": {
        "fields": {"llama.block_count": 2_000_000}
    },
    "contradicts itself (ValueError": {"fields": {"tokenizer.ggml.token_type": [1, 1]}},
    "contradicts itself (TypeError": {"fields": {"tokenizer.chat_template": 7}},
    "is no llama as mlx-lm has it": {"fields": {"llama.embedding_length": 96}},
}


@pytest.mark.parametrize("why", BAD)
def test_what_cannot_be_converted_is_refused_by_name(tmp_path: Path, why: str) -> None:
    source = write_gguf(tmp_path / "model.gguf", **BAD[why])
    with pytest.raises(ConvertError) as caught:
        converted(source)
    said = str(caught.value)
    assert said.startswith(f"{source} {why}")
    assert said.endswith("; look for the model in MLX's format, as on the hub")
    assert list(tmp_path.iterdir()) == [source]


def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "model.gguf")
    whole = source.read_bytes()
    lengths = [5, 20, 100, 1000, 30_000, len(whole) // 2, len(whole) - 1]
    for length in lengths:
        source.write_bytes(whole[:length])
        with pytest.raises(ConvertError, match=r"is cut off or damaged.*; download it again"):
            converted(source)
    source.write_bytes(b"GGU")
    with pytest.raises(ConvertError, match="is not a GGUF file"):
        converted(source)
    assert list(tmp_path.iterdir()) == [source]


def test_a_file_that_is_named_by_its_checksum_must_have_it(tmp_path: Path) -> None:
    """As Ollama names them."""
    source = write_gguf(tmp_path / "model.gguf")
    wrong = source.rename(tmp_path / f"sha256-{'0' * 64}")
    with pytest.raises(ConvertError, match=r"does not have the checksum 000000000000...; download it again"):
        converted(wrong)
    assert list(tmp_path.iterdir()) == [wrong]


def claimed(kind: int, count: int, content: bytes = b"") -> bytes:
    """Return a file whose only field is an array of so many elements."""
    name = b"tokenizer.ggml.tokens"
    field = struct.pack("<Q", len(name)) + name + struct.pack("<IIQ", GGUFValueType.ARRAY, kind, count)
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + field + content


HOSTILE = {
    "its arrays claim 1099511627776 elements": claimed(GGUFValueType.UINT8, 2**40),
    "something is at": claimed(GGUFValueType.UINT8, 2**20),
    "it has an array of arrays": claimed(GGUFValueType.ARRAY, 2**20),
    "something is at 9223372036854775": claimed(GGUFValueType.STRING, 1, struct.pack("<Q", 2**63)),
    "it claims 1099511627776 fields": b"GGUF" + struct.pack("<IQQ", 3, 0, 2**40),
    "it claims 1099511627776 tensors": b"GGUF" + struct.pack("<IQQ", 3, 2**40, 0),
}


@pytest.mark.parametrize("why", HOSTILE)
def test_a_file_that_claims_more_than_it_has_is_refused_at_once(tmp_path: Path, why: str) -> None:
    (tmp_path / "model.gguf").write_bytes(HOSTILE[why])
    # Beyond the end of a file with a hole there are zeros without end.
    os.truncate(tmp_path / "model.gguf", len(HOSTILE[why]) if "something" in why else 2**40)
    with pytest.raises(ConvertError, match=rf"is cut off or damaged \(.*{why}.*download it again"):
        converted(tmp_path / "model.gguf")


@pytest.mark.parametrize("token_id", [4294967295, 4096])
def test_special_tokens_outside_the_vocabulary_are_ignored(tmp_path: Path, token_id: int) -> None:
    names = ("bos", "eos", "eot", "padding", "unknown")
    fields = {f"tokenizer.ggml.{name}_token_id": token_id for name in names}
    folder = converted(
        write_gguf(tmp_path / "model.gguf", fields=fields | {"tokenizer.ggml.add_bos_token": True})
    )
    _, tokenizer = mlx_lm.load(str(folder))
    assert tokenizer.decode(tokenizer.encode("a b")) == "a b"
    assert (tokenizer.bos_token_id, tokenizer.pad_token_id) == (None, None)
    ends = json.loads((folder / "generation_config.json").read_text())
    assert ends == {"eos_token_id": [tokenizer.get_vocab()[one] for one in ("<|im_end|>", "<|endoftext|>")]}


def test_named_templates_are_kept(tmp_path: Path) -> None:
    named = {"tool_use": "{{ tools }}", "rag": "{{ documents }}", "../../up": "no name", "number": 7}
    fields = {f"tokenizer.chat_template.{name}": text for name, text in named.items()}
    folder = converted(write_gguf(tmp_path / "model.gguf", fields=fields))
    _, tokenizer = mlx_lm.load(str(folder))
    default = (BUNDLED_MODEL / "chat_template.jinja").read_text()
    assert tokenizer.chat_template == {
        "default": default, "tool_use": named["tool_use"], "rag": named["rag"]
    }  # fmt: skip
    assert len(list(tmp_path.rglob("*.jinja"))) == 3
