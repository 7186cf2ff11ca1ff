"""Heads as their authors publish them, tiny and random, and what they draft by the papers, in numpy alone."""

from itertools import product
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]

DENSE, EXPERTS = ("gate_proj", "up_proj", "down_proj"), 4


def tiny_mtp(family: str, config: dict[str, Any]) -> Arrays:
    """Make an MTP head's arrays, with the names that they have after the prefix."""
    h, i, m = config["hidden_size"], config["intermediate_size"], config["moe_intermediate_size"]
    heads, kv, d = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    is_qwen, is_mla = family.startswith("qwen"), family == "deepseek_v3"
    q_rows = 2 * heads * d if is_qwen else heads * d
    attention = {
        "q_proj": (q_rows, h),
        "k_proj": (kv * d, h),
        "v_proj": (kv * d, h),
        "o_proj": (h, heads * d),
    }
    if is_mla:
        nope, rope, v = (config[f"{name}_head_dim"] for name in ("qk_nope", "qk_rope", "v"))
        q_rank, kv_rank = config["q_lora_rank"], config["kv_lora_rank"]
        attention = {
            "q_a_proj": (q_rank, h), "q_a_layernorm": (q_rank,), "q_b_proj": (heads * (nope + rope), q_rank),
            "kv_a_proj_with_mqa": (kv_rank + rope, h), "kv_a_layernorm": (kv_rank,),
            "kv_b_proj": (heads * (nope + v), kv_rank), "o_proj": (h, heads * v),
        }  # fmt: skip
    elif family != "llama":
        attention |= {"q_norm": (d,), "k_norm": (d,)}
    layer = {f"self_attn.{name}.weight": shape for name, shape in attention.items()}
    layer |= {"input_layernorm.weight": (h,), "post_attention_layernorm.weight": (h,)}
    mlp = {f"mlp.{part}.weight": _matrix(part, h, i) for part in DENSE}
    if config["num_experts" if is_qwen else "n_routed_experts"] and family != "llama":
        shared = "shared_expert" if is_qwen else "shared_experts"
        mlp = {
            f"mlp.experts.{e}.{part}.weight": _matrix(part, h, m)
            for e, part in product(range(EXPERTS), DENSE)
        }
        mlp |= {f"mlp.{shared}.{part}.weight": _matrix(part, h, m) for part in DENSE}
        mlp["mlp.gate.weight"] = (EXPERTS, h)
        mlp |= (
            {"mlp.shared_expert_gate.weight": (1, h)}
            if is_qwen
            else {"mlp.gate.e_score_correction_bias": (EXPERTS,)}
        )
    layer |= mlp
    if is_qwen or family == "llama":
        shapes = {f"layers.0.{name}": shape for name, shape in layer.items()}
        shapes |= {"fc.weight": (h, 2 * h), "norm.weight": (h,)}
        shapes |= {"pre_fc_norm_embedding.weight": (h,), "pre_fc_norm_hidden.weight": (h,)}
    else:
        shapes = layer | {"eh_proj.weight": (h, 2 * h), "enorm.weight": (h,), "hnorm.weight": (h,)}
        shapes |= {
            "shared_head.norm.weight": (h,),
            "embed_tokens.weight": (8, h),
            "shared_head.head.weight": (8, h),
        }
    return random_arrays(shapes, centre=0.0 if is_qwen else 1.0)


def _matrix(part: str, hidden: int, inner: int) -> tuple[int, int]:
    return (hidden, inner) if part == "down_proj" else (inner, hidden)


def random_arrays(shapes: dict[str, tuple[int, ...]], centre: float = 1.0) -> Arrays:
    """Make arrays of these shapes. centre: mean of the weights of norms."""
    random = np.random.default_rng(11)
    return {
        name: (centre + 0.3 * random.normal(size=shape)).astype(np.float32)
        if "norm" in name
        else (0.3 * random.normal(size=shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def draft_mtp(
    family: str, config: dict[str, Any], w: Arrays, ends: tuple[np.ndarray, np.ndarray],
    states: np.ndarray, following: list[int], num: int,
) -> list[int]:  # fmt: skip
    """Draft as published, without a cache: DeepSeek-V3 (arXiv:2412.19437), section 2.2, and Qwen3-Next.

    ends: the target's embedding and output head, (vocabulary, hidden) each. states: (positions, hidden).
    following: the token after each position.
    """
    embedding, output = ends
    is_deepseek = "eh_proj.weight" in w
    names = ("eh_proj", "enorm", "hnorm", "shared_head.norm") if is_deepseek else (
        "fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")  # fmt: skip
    one = 1.0 if family.startswith("qwen") else 0.0
    fc, e_norm, h_norm, last_norm = (w[f"{name}.weight"] for name in names)
    layer = {name.removeprefix("layers.0."): array for name, array in w.items()}
    inputs: list[np.ndarray] = []
    drafted: list[int] = []
    pairs = list(zip(states, following, strict=True))
    while True:
        for state, token in pairs:
            embedded = embedding[token] * (0.0 if is_deepseek and not inputs else 1.0)
            inputs.append(fc @ np.concatenate([rms(embedded, e_norm + one), rms(state, h_norm + one)]))
        if len(drafted) == num:
            return drafted
        made = decoder_layer(family, config, layer, np.stack(inputs), one)[-1]
        normed = rms(made, last_norm + one)
        drafted.append(int(np.argmax(output @ normed)))
        pairs = [(made if is_deepseek else normed, drafted[-1])]


def rms(x: np.ndarray, weight: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rope(x: np.ndarray, dims: int, base: float, start: int = 0, adjacent: bool = False) -> np.ndarray:
    """Rotate the first dims numbers of x (heads, places, head_dim); adjacent: in pairs of neighbours."""
    angles = np.arange(start, start + x.shape[1])[:, None] * base ** (-np.arange(0, dims, 2) / dims)
    first, second = (
        (slice(0, dims, 2), slice(1, dims, 2)) if adjacent else (slice(0, dims // 2), slice(dims // 2, dims))
    )
    out = x.copy()
    out[..., first] = x[..., first] * np.cos(angles) - x[..., second] * np.sin(angles)
    out[..., second] = x[..., second] * np.cos(angles) + x[..., first] * np.sin(angles)
    return out


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Attend with (heads, places, head_dim); keys and values may have fewer heads. Returns (places, any)."""
    k, v = (np.repeat(one, q.shape[0] // one.shape[0], axis=0) for one in (k, v))
    scores = q @ k.transpose(0, 2, 1) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    return (softmax(scores) @ v).transpose(1, 0, 2).reshape(q.shape[1], -1)


def heads_of(x: np.ndarray, dim: int) -> np.ndarray:
    return x.reshape(x.shape[0], -1, dim).transpose(1, 0, 2)


def decoder_layer(family: str, c: dict[str, Any], w: Arrays, x: np.ndarray, one: float) -> np.ndarray:
    """Apply a decoder layer to x (places, hidden). one: what norms lack."""
    n = rms(x, w["input_layernorm.weight"] + one)
    a = {name: w.get(f"self_attn.{name}.weight") for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
    causal, d, base = np.tri(len(x), dtype=bool), c["head_dim"], c["rope_theta"]
    if family == "deepseek_v3":
        seen = latent_attention(c, w, n, causal)
    else:
        q, k, v = (heads_of(n @ a[name].T, d) for name in ("q_proj", "k_proj", "v_proj"))
        if family.startswith("qwen"):
            q, gate = np.split((n @ a["q_proj"].T).reshape(len(x), -1, 2 * d), 2, axis=-1)
            q = q.transpose(1, 0, 2)
        if family != "llama":
            q, k = (rms(s, w[f"self_attn.{m}_norm.weight"] + one) for s, m in ((q, "q"), (k, "k")))
        dims = d if family == "llama" else int(d * c["partial_rotary_factor"])
        seen = attend(rope(q, dims, base), rope(k, dims, base), v, causal)
        if family.startswith("qwen"):
            seen = seen * sigmoid(gate.reshape(len(x), -1))
    x = x + seen @ a["o_proj"].T
    return x + mlp(c, w, rms(x, w["post_attention_layernorm.weight"] + one))


def latent_attention(c: dict[str, Any], w: Arrays, n: np.ndarray, mask: np.ndarray) -> np.ndarray:
    nope, rot, v_dim = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    a = {name.removeprefix("self_attn."): array for name, array in w.items() if name.startswith("self_attn.")}
    q = rms(n @ a["q_a_proj.weight"].T, a["q_a_layernorm.weight"], 1e-6) @ a["q_b_proj.weight"].T
    latent, k_rot = np.split(n @ a["kv_a_proj_with_mqa.weight"].T, [c["kv_lora_rank"]], axis=-1)
    kv = heads_of(rms(latent, a["kv_a_layernorm.weight"], 1e-6) @ a["kv_b_proj.weight"].T, nope + v_dim)
    q = heads_of(q, nope + rot)
    q_rot, k_rot = (rope(x, rot, c["rope_theta"], adjacent=True) for x in (q[..., nope:], k_rot[None]))
    k = np.concatenate([kv[..., :nope], np.repeat(k_rot, len(kv), axis=0)], -1)
    return attend(np.concatenate([q[..., :nope], q_rot], -1), k, kv[..., nope:], mask)


def mlp(c: dict[str, Any], w: Arrays, x: np.ndarray) -> np.ndarray:
    def swiglu(prefix: str, x: np.ndarray) -> np.ndarray:
        gate, up, down = (w[f"mlp.{prefix}{part}.weight"] for part in DENSE)
        g = x @ gate.T
        return (g * sigmoid(g) * (x @ up.T)) @ down.T

    if "mlp.gate.weight" not in w:
        return swiglu("", x)
    logits, k, out = x @ w["mlp.gate.weight"].T, c["num_experts_per_tok"], np.zeros_like(x)
    bias = w.get("mlp.gate.e_score_correction_bias")
    scores = softmax(logits) if bias is None else sigmoid(logits)
    for place, row in enumerate(scores):
        chosen = np.argsort(row + (0 if bias is None else bias))[-k:]
        for e in chosen:
            out[place] += row[e] / row[chosen].sum() * swiglu(f"experts.{e}.", x[place : place + 1])[0]
    if bias is not None:
        return out * c["routed_scaling_factor"] + swiglu("shared_experts.", x)
    return out + sigmoid(x @ w["mlp.shared_expert_gate.weight"].T) * swiglu("shared_expert.", x)


def tiny_dflash(config: dict[str, Any]) -> Arrays:
    """Make a DFlash drafter's arrays."""
    h, i, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    num_taps = len(config["dflash_config"]["target_layer_ids"])
    shapes = {"fc.weight": (h, num_taps * h), "hidden_norm.weight": (h,), "norm.weight": (h,)}
    for layer in range(config["num_hidden_layers"]):
        parts = {
            "self_attn.q_proj": (heads * d, h), "self_attn.k_proj": (kv * d, h),
            "self_attn.v_proj": (kv * d, h), "self_attn.o_proj": (h, heads * d),
            "self_attn.q_norm": (d,), "self_attn.k_norm": (d,),
            "input_layernorm": (h,), "post_attention_layernorm": (h,),
            **{f"mlp.{part}": _matrix(part, h, i) for part in DENSE},
        }  # fmt: skip
        shapes |= {f"layers.{layer}.{name}.weight": shape for name, shape in parts.items()}
    return random_arrays(shapes)


def draft_dflash(
    c: dict[str, Any], w: Arrays, ends: tuple[np.ndarray, np.ndarray], states: np.ndarray, last: int, num: int
) -> list[int]:
    """Draft as published, without a cache: DFlash (arXiv:2602.06036). states: (positions, taps * hidden)."""
    embedding, output = ends
    d, base, length = c["head_dim"], c["rope_theta"], len(states)
    context = rms(states @ w["fc.weight"].T, w["hidden_norm.weight"])
    x = embedding[[last, *[c["dflash_config"]["mask_token_id"]] * num]]
    for number, kind in enumerate(c["layer_types"]):
        prefix = f"layers.{number}."
        p = {name.removeprefix(prefix): array for name, array in w.items() if name.startswith(prefix)}
        a = {
            name: p[f"self_attn.{name}.weight"]
            for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
        }
        n = rms(x, p["input_layernorm.weight"])
        q = rope(rms(heads_of(n @ a["q_proj"].T, d), a["q_norm"]), d, base, length)
        both = np.concatenate([context, n])
        k = rope(rms(heads_of(both @ a["k_proj"].T, d), a["k_norm"]), d, base)
        v = heads_of(both @ a["v_proj"].T, d)
        first = max(0, length + 1 - c["sliding_window"]) if kind == "sliding_attention" else 0
        x = x + attend(q, k[:, first:], v[:, first:], None) @ a["o_proj"].T
        x = x + mlp(c, p, rms(x, p["post_attention_layernorm.weight"]))
    return [int(token) for token in np.argmax(rms(x[1:], w["norm.weight"]) @ output.T, -1)]
