"""Convert the tensors of a GGUF file into arrays by mlx-lm's names, one after the other.

MLX quantises affinely: a group of numbers q, each of a few bits, stands for scale * q + bias. Q4_0, Q4_1 and
Q8_0 do the same in groups of 32 with scales of float16, so their numbers are only packed in another order. So
do Q4_K and Q5_K, whose scales are products of two numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from gguf import ReaderTensor
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import Q4_K, dequantize

from reprise.engine.model.convert.gguf_architectures import ROPE_FREQUENCIES, find_architecture
from reprise.engine.model.convert.gguf_file import GgufFile
from reprise.engine.model.convert.options import DType, Options

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
        if self.bits is None:
            return int(self.tensor.n_elements) * _size(dtype)
        # A scale and a bias for each group.
        return int(self.tensor.n_elements * (self.bits / 8 + 2 * _size(dtype) / self.group_size))


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
        kept = is_kept(tensor, options)
        bits, group_size = options.bits, options.group_size
        if bits is None and not options.dequantize and tensor.tensor_type not in FLOATS:
            bits, group_size = compact_bits(tensor.tensor_type), KEPT_GROUP_SIZE
        if kept:
            bits, group_size = KEPT_BITS[tensor.tensor_type], KEPT_GROUP_SIZE
        elif len(tensor.shape) < 2 or int(tensor.shape[0]) % group_size:
            bits = None
        weights.append(Weight(tensor, path, ending, kept, bits, group_size))
    return weights


def is_kept(tensor: ReaderTensor, options: Options) -> bool:
    """Whether a tensor stays quantised as it is in the file."""
    bits = KEPT_BITS.get(tensor.tensor_type)
    return bits is not None and not options.dequantize and bits <= (options.bits or bits)


def compact_bits(kind: Kind) -> int:
    """Return the bits for what is quantised in a way that MLX does not have: the next width above its own."""
    per_block, num_bytes = GGML_QUANT_SIZES[kind]
    return next((bits for bits in _WIDTHS if bits >= 8 * num_bytes / per_block), _WIDTHS[-1])


def find_dtype(weights: list[Weight], options: Options) -> DType:
    """Return the type of the arrays that are not quantised, and of scales.

    By default float16 beside weights that stay quantised, whose scales have that type; the file's own if it
    is not quantised; and else bfloat16. On the CPU float32 beside any quantised weights: MLX takes 30 to 200
    times as long for others there.
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
    """Unpack what has scales that are products; see unpack().

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
    """Put rows back into the original model's order: llama.cpp interleaves the halves that a rotation pairs.

    rows: (heads * head size, ...) of queries or keys.
    """
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _ordered(gguf: GgufFile, tensor: ReaderTensor, rows: np.ndarray) -> np.ndarray:
    if find_architecture(gguf).permutes and ".attn_q." in tensor.name:
        return unpermute(rows, gguf.count("attention.head_count"))
    if find_architecture(gguf).permutes and ".attn_k." in tensor.name:
        return unpermute(rows, gguf.count("attention.head_count_kv", gguf.count("attention.head_count")))
    return rows


def _size(dtype: DType) -> int:
    return 4 if dtype == "float32" else 2
