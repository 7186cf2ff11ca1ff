"""Read a GGUF file, or the parts that one was split into: its fields, and its tensors on disk."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from gguf import GGUFReader, ReaderTensor
from gguf.constants import GGML_QUANT_SIZES, GGUFValueType
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import Q4_K, dequantize

from reprise.engine.model.convert.sources import ConvertError, DType, Options, is_gguf

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
MAX_ELEMENTS = 2**22
"""Maximum elements of all arrays in a file's fields. Known vocabularies and their merges have 1.3 million."""

MAX_FIELDS = 2**16
"""Maximum number of fields, and of tensors."""

_DIGEST = re.compile("sha256-([0-9a-f]{64})")


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file's fields and tensors.

    fields: metadata by name. tensors: those of all parts, still on disk, with their shapes in reverse order.
    """

    path: Path
    fields: dict[str, Any]
    tensors: Sequence[ReaderTensor]

    @property
    def architecture(self) -> str:
        """The name of the architecture in llama.cpp."""
        return str(self.field("general.architecture"))

    def field(self, name: str) -> Any:
        """Return the value of a field. Raises ConvertError if the file lacks it."""
        if name not in self.fields:
            raise self.refusal(f"has no {name}, so it is no whole text model")
        return self.fields[name]

    def hyper(self, name: str, *default: Any) -> Any:
        """Return an architecture's field, or a default if the file lacks it. Raises ConvertError."""
        full = f"{self.architecture}.{name}"
        value = self.fields.get(full, *default) if default else self.field(full)
        if isinstance(value, list):
            raise self.refusal(f"has another {full} for each layer, which is not converted")
        return value

    def count(self, name: str, *default: Any) -> int:
        """Return an architecture's field that counts something, so 1 or more. Raises ConvertError."""
        value = self.hyper(name, *default)
        if not isinstance(value, int) or value < 1:
            raise self.refusal(f"has {self.architecture}.{name} {value!r}, which must be a number above 0")
        return value

    def token_id(self, name: str) -> int | None:
        """Return the id of a special token; None if the file names none, or one outside its vocabulary."""
        value = self.fields.get(f"tokenizer.ggml.{name}_token_id")
        is_known = isinstance(value, int) and 0 <= value < len(self.field("tokenizer.ggml.tokens"))
        return value if is_known else None

    def refusal(self, reason: str) -> ConvertError:
        """Return an error that this file cannot be converted. reason: a sentence without its subject."""
        return ConvertError(f"{self.path} {reason}; look for the model in MLX's format, as on the hub")


def read_gguf(path: Path) -> GgufFile:
    """Read a file's fields, and find its tensors. Raises ConvertError if a part is damaged or missing."""
    if not is_gguf(path):
        raise ConvertError(f"{path} is not a GGUF file; give one, a model's folder, or a name on the hub")
    check_digest(path, _digest_in_name(path))
    readers = [_open(part) for part in _parts(path)]
    try:
        fields = {name: field.contents() for name, field in readers[0].fields.items()}
    except (ValueError, IndexError, TypeError) as fault:
        raise _damaged(path, fault) from fault
    return GgufFile(path, fields, [tensor for reader in readers for tensor in reader.tensors])


def check_digest(path: Path, sha256: str | None) -> None:
    """Raise ConvertError if a file has another SHA-256 than this one; None to check nothing."""
    if sha256 is None:
        return
    with path.open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
            raise ConvertError(f"{path} does not have the checksum {sha256[:12]}...; download it again")


def _digest_in_name(path: Path) -> str | None:
    """Return the digest that Ollama names a file by."""
    named = _DIGEST.fullmatch(path.resolve().name)
    return named[1] if named else None


def _parts(path: Path) -> list[Path]:
    """Return the parts of the model that a file belongs to, in order."""
    named = _PART.fullmatch(path.name)
    if not named:
        return [path]
    count = int(named[3])
    parts = [path.with_name(f"{named[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    for part in parts:
        if not part.is_file():
            raise ConvertError(f"{path.name} is one of {count} parts, and {part} is missing; download it")
    return parts


class _Reader(GGUFReader):
    """Reads a file with untrusted counts: the library would loop over as many elements as are claimed."""

    def __init__(self, path: Path) -> None:
        self._num_elements = 0
        super().__init__(path)

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        end = offset + np.dtype(dtype).itemsize * int(count)
        if end > len(self.data):
            raise ValueError(f"it ends at byte {len(self.data)}, and something is at {end}")
        return super()._get(offset, dtype, count, override_order)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == GGUFValueType.ARRAY:
            if self._get(orig_offs, np.uint32)[0] == GGUFValueType.ARRAY:
                raise ValueError("it has an array of arrays")
            self._num_elements += int(self._get(orig_offs + 4, np.uint64)[0])
            if self._num_elements > MAX_ELEMENTS:
                raise ValueError(f"its arrays claim {self._num_elements} elements, more than {MAX_ELEMENTS}")
        return super()._get_field_parts(orig_offs, raw_type)

    def _build_fields(self, offs: int, count: int) -> int:
        _check_number(count, "fields")
        return super()._build_fields(offs, count)

    def _build_tensor_info(self, offs: int, count: int) -> Any:
        _check_number(count, "tensors")
        return super()._build_tensor_info(offs, count)


def _check_number(count: int, what: str) -> None:
    if count > MAX_FIELDS:
        raise ValueError(f"it claims {count} {what}, more than {MAX_FIELDS}")


def _open(path: Path) -> GGUFReader:
    try:
        return _Reader(path)
    # Reading a truncated file raises anything.
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as fault:
        raise _damaged(path, fault) from fault
    except OSError as fault:
        raise ConvertError(f"cannot read {path}: {fault.strerror}") from fault


def _damaged(path: Path, fault: Exception) -> ConvertError:
    return ConvertError(f"{path} is cut off or damaged ({first_line(fault)}); download it again")


def first_line(fault: Exception) -> str:
    """Return an error's message, cut to one line."""
    return next(iter(str(fault).splitlines()), type(fault).__name__)[:120]


_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
ROPE_FREQUENCIES = "rope_freqs.weight"
"""Tensor of factors by which Llama 3 divides the frequencies of its rotation."""

_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Alike in all models of Llama 3; a GGUF file has only what follows from them."""

_GEMMA_27B_LAYERS = 62


@dataclass(frozen=True)
class Architecture:
    """How models of one of llama.cpp's architectures are converted.

    model_type: in mlx-lm. names: a tensor's name in llama.cpp -> that in mlx-lm, both without block and
        ending. permutes: whether the rows of queries and keys are in llama.cpp's own order.
    norm_offset: to be subtracted from the norms.
    """

    model_type: str
    names: Mapping[str, str]
    permutes: bool = False
    norm_offset: int = 0


ARCHITECTURES = {
    "llama": Architecture("llama", _NAMES, permutes=True),
    "qwen2": Architecture("qwen2", _NAMES),
    "qwen3": Architecture("qwen3", _NAMES | _NORMS),
    # The file has the factor itself; mlx-lm, like the original, adds 1 to what it loads.
    "gemma3": Architecture("gemma3_text", _NAMES | _NORMS | _GEMMA_NORMS, norm_offset=1),
}


def find_architecture(gguf: GgufFile) -> Architecture:
    """Return how a file's architecture is converted. Raises ConvertError if that is not known."""
    if gguf.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise gguf.refusal(
            f"has the architecture {gguf.architecture}, and only {known} are converted from GGUF"
        )
    return ARCHITECTURES[gguf.architecture]


def make_config(gguf: GgufFile, is_tied: bool, vocab_size: int) -> dict[str, Any]:
    """Make the model's config.json, without types and quantisation. Raises ConvertError."""
    heads, size = gguf.count("attention.head_count"), gguf.count("embedding_length")
    config = {
        "model_type": find_architecture(gguf).model_type,
        "hidden_size": size,
        "num_hidden_layers": gguf.count("block_count"),
        "intermediate_size": gguf.count("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": gguf.count("attention.head_count_kv", heads),
        "head_dim": gguf.count("attention.key_length", size // heads),
        "rms_norm_eps": gguf.hyper("attention.layer_norm_rms_epsilon"),
        "rope_theta": gguf.hyper("rope.freq_base", 10_000.0),
        "max_position_embeddings": gguf.count("context_length"),
        "vocab_size": vocab_size,
        "tie_word_embeddings": is_tied,
    }
    if scaling := _rope_scaling(gguf):
        config["rope_scaling"] = scaling
    if gguf.architecture == "llama":
        config["attention_bias"] = any(tensor.name.endswith("attn_q.bias") for tensor in gguf.tensors)
    if gguf.architecture == "gemma3":
        is_27b = config["num_hidden_layers"] == _GEMMA_27B_LAYERS
        config |= {
            "query_pre_attn_scalar": config["hidden_size"] // heads if is_27b else config["head_dim"],
            "sliding_window": gguf.hyper("attention.sliding_window"),
            # Alike in all models of the family, and not in the file.
            "sliding_window_pattern": 6,
            "rope_local_base_freq": gguf.hyper("rope.freq_base_swa", 10_000.0),
        }
    return config


def _rope_scaling(gguf: GgufFile) -> dict[str, Any] | None:
    """Return the config of rope scaling; None if there is none."""
    factors = next((tensor for tensor in gguf.tensors if tensor.name == ROPE_FREQUENCIES), None)
    if factors is not None:
        return _llama3_scaling(gguf, dequantize(factors.data, factors.tensor_type))
    kind = gguf.hyper("rope.scaling.type", "none")
    if kind == "none":
        return None
    scaling = {"rope_type": kind, "factor": gguf.hyper("rope.scaling.factor")}
    if kind == "linear":
        return scaling
    if kind == "yarn":
        original = gguf.hyper("rope.scaling.original_context_length")
        return scaling | {"original_max_position_embeddings": original}
    raise gguf.refusal(f"scales positions by {kind}, which is not converted")


def _llama3_scaling(gguf: GgufFile, factors: np.ndarray) -> dict[str, Any]:
    """Return the scaling of Llama 3 with these factors, (half a head,). Raises ConvertError for any other."""
    scaling = {"rope_type": "llama3", "factor": float(factors.max()), **_LLAMA3_ROPE}
    exponents = np.arange(factors.size) / factors.size
    wavelengths = 2 * np.pi * gguf.hyper("rope.freq_base", 10_000.0) ** exponents
    low, high, original = _LLAMA3_ROPE.values()
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    if not np.allclose(1 / ((1 - smooth) / scaling["factor"] + smooth), factors, rtol=1e-3):
        raise gguf.refusal("scales positions by factors that are not Llama 3's")
    return scaling


KEPT_GROUP_SIZE = 32
KEPT_BITS = {Kind.Q4_0: 4, Kind.Q4_1: 4, Kind.Q4_K: 4, Kind.Q5_K: 5, Kind.Q8_0: 8}
"""Bits of the types that MLX holds as they are."""

_WIDTHS = (3, 4, 5, 6, 8)
"""Bits that MLX quantises to and that are of use here."""

FLOATS: dict[Kind, DType] = {Kind.F32: "float32", Kind.F16: "float16", Kind.BF16: "bfloat16"}


@dataclass(frozen=True)
class Weight:
    """A tensor, and its place in mlx-lm's model. path: the path of its module. ending: weight or bias.

    kept: whether it stays quantised as it is in the file. bits: bits of a quantised number, kept or new; None
        if the weight is not quantised.
    """

    tensor: ReaderTensor
    path: str
    ending: str
    kept: bool
    bits: int | None
    group_size: int

    def num_bytes(self, dtype: DType) -> int:
        """Return the bytes of the converted weight, with scales and biases. dtype: that of find_dtype()."""
        number_bytes = 4 if dtype == "float32" else 2
        if self.bits is None:
            return int(self.tensor.n_elements) * number_bytes
        # A scale and a bias for each group.
        return int(self.tensor.n_elements * (self.bits / 8 + 2 * number_bytes / self.group_size))


def plan_weights(gguf: GgufFile, options: Options) -> list[Weight]:
    """Plan the conversion of every tensor. Raises ConvertError for one that the architecture lacks."""
    names = find_architecture(gguf).names
    weights = []
    for tensor in gguf.tensors:
        *block, name, ending = tensor.name.split(".")
        if tensor.name == ROPE_FREQUENCIES:
            continue
        if name not in names or ending not in ("weight", "bias") or (block and block[0] != "blk"):
            raise gguf.refusal(f"has the tensor {tensor.name}, which mlx-lm's {gguf.architecture} has not")
        path = f"model.layers.{block[1]}.{names[name]}" if block else names[name]
        own = KEPT_BITS.get(tensor.tensor_type)
        kept = own is not None and not options.dequantize and own <= (options.bits or own)
        bits, group_size = options.bits, options.group_size
        if kept or (bits is None and not options.dequantize and tensor.tensor_type not in FLOATS):
            bits, group_size = own or compact_bits(tensor.tensor_type), KEPT_GROUP_SIZE
        if not kept and (len(tensor.shape) < 2 or int(tensor.shape[0]) % group_size):
            bits = None
        weights.append(Weight(tensor, path, ending, kept, bits, group_size))
    return weights


def compact_bits(kind: Kind) -> int:
    """Return the bits for a quantisation that MLX lacks: the next width above its own."""
    per_block, num_bytes = GGML_QUANT_SIZES[kind]
    return next((bits for bits in _WIDTHS if bits >= 8 * num_bytes / per_block), _WIDTHS[-1])


def find_dtype(weights: list[Weight], options: Options) -> DType:
    """Return the type of the arrays that are not quantised, and of scales.

    By default: float16 if weights stay quantised, as their scales are; the file's own type if it is not
    quantised; else bfloat16. On the CPU, float32 with any quantised weights: MLX takes 30 to 200 times as
    long with other types there.
    """
    if options.dtype:
        return options.dtype
    if any(weight.bits for weight in weights) and mx.default_device().type == mx.DeviceType.cpu:
        return "float32"
    if any(weight.kept for weight in weights):
        return "float16"
    kinds = {weight.tensor.tensor_type for weight in weights if len(weight.tensor.shape) > 1}
    return FLOATS.get(kinds.pop(), "bfloat16") if len(kinds) == 1 else "bfloat16"


def quantization_of(weights: list[Weight]) -> dict[str, Any] | None:
    """Return the configuration's part about quantised weights; None if no weight is quantised."""
    quantised = [weight for weight in weights if weight.bits is not None]
    if not quantised:
        return None
    described = {weight.path: {"group_size": weight.group_size, "bits": weight.bits} for weight in quantised}
    usual = max(described.values(), key=list(described.values()).count)
    return usual | {path: own for path, own in described.items() if own != usual}


def convert_weight(gguf: GgufFile, weight: Weight, dtype: DType) -> Iterator[tuple[str, mx.array]]:
    """Yield the names and arrays of a converted tensor: one, or three with scales and biases."""
    tensor = weight.tensor
    number_type: mx.Dtype = getattr(mx, dtype)
    if weight.kept:
        arrays = unpack(_ordered(gguf, tensor, tensor.data), tensor.tensor_type)
        quantised, scales, biases = map(mx.array, arrays)
    else:
        values = _ordered(gguf, tensor, dequantize(tensor.data, tensor.tensor_type))
        if weight.path.endswith("norm"):
            values = values - find_architecture(gguf).norm_offset
        array = mx.array(values).astype(number_type)
        if weight.bits is None:
            yield f"{weight.path}.{weight.ending}", array
            return
        quantised, scales, biases = mx.quantize(array, weight.group_size, weight.bits)
    yield f"{weight.path}.weight", quantised
    yield f"{weight.path}.scales", scales.astype(number_type)
    yield f"{weight.path}.biases", biases.astype(number_type)


def unpack(data: np.ndarray, kind: Kind) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Put a quantised tensor's numbers, scales and biases into MLX's order, with no number changed.

    data: (rows, bytes), blocks of a float16 scale, in Q4_1 also a float16 bias, and 32 numbers; for Q4_K and
        Q5_K see _unpack_k().
    Returns numbers (rows, columns * bits / 32) uint32, then scales and biases (rows, columns / 32): float16,
    and float32 of Q4_K and Q5_K.
    """
    blocks = data.reshape(data.shape[0], -1, GGML_QUANT_SIZES[kind][1])
    if kind in (Kind.Q4_K, Kind.Q5_K):
        return _unpack_k(blocks, kind)
    scales = blocks[..., :2].copy().view(np.float16)[..., 0]
    if kind == Kind.Q8_0:
        numbers = blocks[..., 2:] ^ 0x80  # From -128 to 127, counted from 0.
        biases = -128 * scales
    else:
        packed = blocks[..., -16:]
        numbers = _pack(np.concatenate([packed & 0xF, packed >> 4], axis=-1), 4)
        biases = -8 * scales if kind == Kind.Q4_0 else blocks[..., 2:4].copy().view(np.float16)[..., 0]
    return np.ascontiguousarray(numbers).reshape(data.shape[0], -1).view(np.uint32), scales, biases


def _unpack_k(blocks: np.ndarray, kind: Kind) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unpack blocks whose scales are products; see unpack().

    blocks: (rows, blocks, bytes), each of two float16, 16 numbers of 6 bits, and 8 groups of 32 numbers.
    """
    rows = blocks.shape[0]
    scale, least = (blocks[..., at : at + 2].copy().view(np.float16).astype(np.float32) for at in (0, 2))
    each = Q4_K.get_scale_min(blocks[..., 4:16].reshape(-1, 12))
    scales, biases = (
        (whole * part.reshape(rows, -1, 8)).reshape(rows, -1)
        for whole, part in zip((scale, -least), each, strict=True)
    )
    low = blocks[..., -128:].reshape(rows, -1, 4, 1, 32)
    numbers = np.concatenate([low & 0xF, low >> 4], axis=-2).reshape(rows, -1, 8, 32)
    if kind == Kind.Q5_K:
        # Bit i of each byte belongs to group i.
        high = blocks[..., 16:48].reshape(rows, -1, 1, 32) >> np.arange(8, dtype=np.uint8)[:, None]
        numbers = numbers | (high & 1) << 4
    packed = _pack(numbers.reshape(rows, -1), KEPT_BITS[kind])
    return np.ascontiguousarray(packed).view(np.uint32), scales, biases


def _pack(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Pack numbers (..., n) of a few bits each into bytes (..., n * bits / 8), the lowest bits first."""
    if bits == 4:
        pairs: np.ndarray = numbers[..., ::2] | numbers[..., 1::2] << 4
        return pairs
    digits: np.ndarray = numbers[..., None] >> np.arange(bits, dtype=np.uint8) & 1
    return np.packbits(digits.reshape(*numbers.shape[:-1], -1), axis=-1, bitorder="little")


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's interleaving of the two halves that rope pairs.

    rows: (heads * head size, ...) of queries or keys.
    """
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _ordered(gguf: GgufFile, tensor: ReaderTensor, rows: np.ndarray) -> np.ndarray:
    heads = gguf.count("attention.head_count")
    if find_architecture(gguf).permutes and ".attn_q." in tensor.name:
        return unpermute(rows, heads)
    if find_architecture(gguf).permutes and ".attn_k." in tensor.name:
        return unpermute(rows, gguf.count("attention.head_count_kv", heads))
    return rows
