"""Heads as their authors publish them, tiny and random, and what they draft by the papers, in numpy alone."""

from itertools import product
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]

DENSE, EXPERTS = ("gate_proj", "up_proj", "down_proj"), 4

QWEN = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
SPARSE = ("deepseek_v32", "glm_moe_dsa")
"""Families whose attention chooses the positions that it sees."""

LATENT = ("deepseek_v3", "glm4_moe_lite", *SPARSE)
AFTER_THE_LAST = ("glm4_moe", *LATENT)
"""Families whose head is published as a layer after the last one."""

_QWEN = "fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"
_DEEPSEEK = "eh_proj", "enorm", "hnorm", "shared_head.norm"
_MIMO = "input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm"
_NEMOTRON = "layers.0.eh_proj", "layers.0.enorm", "layers.0.hnorm", "layers.1.final_layernorm"


def ends_of(family: str) -> tuple[str, str, str, str]:
    """Return the published names of what joins embedding and state, their norms, and the norm at the end."""
    return {"mimo": _MIMO, "nemotron_h": _NEMOTRON}.get(
        family, _DEEPSEEK if family in AFTER_THE_LAST else _QWEN
    )


def tiny_mtp(family: str, config: dict[str, Any]) -> Arrays:
    """Make an MTP head's arrays, with the names that they have after the prefix."""
    h, i, m = config["hidden_size"], config["intermediate_size"], config["moe_intermediate_size"]
    heads, kv, d = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    is_qwen, is_mla = family.startswith("qwen"), family in LATENT
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
    elif family in ("glm4_moe", *QWEN):
        attention |= {"q_norm": (d,), "k_norm": (d,)}
    if family in SPARSE:
        n, d = config["index_n_heads"], config["index_head_dim"]
        attention |= {
            "indexer.wq_b": (n * d, q_rank), "indexer.wk": (d, h), "indexer.k_norm": (d,),
            "indexer.weights_proj": (n, h),
        }  # fmt: skip
    if family == "nemotron_h":
        return _tiny_nemotron(config, attention)
    layer = {f"self_attn.{name}.weight": shape for name, shape in attention.items()}
    if family in SPARSE:
        layer["self_attn.indexer.k_norm.bias"] = (d,)
    if family == "mimo":
        layer |= {f"self_attn.{name}_proj.bias": attention[f"{name}_proj"][:1] for name in "qkv"}
    layer |= {"input_layernorm.weight": (h,), "post_attention_layernorm.weight": (h,)}
    mlp = {f"mlp.{part}.weight": _matrix(part, h, i) for part in DENSE}
    if config["num_experts" if is_qwen else "n_routed_experts"] and family not in ("llama", "mimo"):
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
    at = "layers.0." if is_qwen or family == "llama" else ""
    shapes = {f"{at}{name}": shape for name, shape in layer.items()}
    joins, *norms = ends_of(family)
    shapes |= {f"{joins}.weight": (h, 2 * h)} | {f"{name}.weight": (h,) for name in norms}
    if family in AFTER_THE_LAST:
        shapes |= {"embed_tokens.weight": (8, h), "shared_head.head.weight": (8, h)}
    return random_arrays(shapes, centre=0.0 if is_qwen else 1.0)


def _tiny_nemotron(config: dict[str, Any], attention: dict[str, tuple[int, ...]]) -> Arrays:
    h, m, shared = (
        config[name]
        for name in ("hidden_size", "moe_intermediate_size", "moe_shared_expert_intermediate_size")
    )
    joins, *norms = ends_of("nemotron_h")
    shapes = {f"{joins}.weight": (h, 2 * h)} | {f"{name}.weight": (h,) for name in norms}
    shapes |= {f"layers.0.mixer.{name}.weight": shape for name, shape in attention.items()}
    shapes |= {f"layers.{layer}.norm.weight": (h,) for layer in (0, 1)}
    shapes |= {
        "layers.1.mixer.gate.weight": (EXPERTS, h),
        "layers.1.mixer.gate.e_score_correction_bias": (EXPERTS,),
    }
    for part in ("up_proj", "down_proj"):
        shapes[f"layers.1.mixer.shared_experts.{part}.weight"] = _matrix(part, h, shared)
        shapes |= {f"layers.1.mixer.experts.{e}.{part}.weight": _matrix(part, h, m) for e in range(EXPERTS)}
    return random_arrays(shapes)


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
    """Draft as published, without a cache: DeepSeek-V3 (arXiv:2412.19437), section 2.2, and what followed.

    ends: the target's embedding and output head, (vocabulary, hidden) each. states: (positions, hidden).
    following: the token after each position.
    """
    embedding, output = ends
    hides_first = family == "mimo" or (family in AFTER_THE_LAST and family != "glm_moe_dsa")
    one = 1.0 if family.startswith("qwen") else 0.0
    fc, e_norm, h_norm, last_norm = (w[f"{name}.weight"] for name in ends_of(family))
    layer = {name.removeprefix("layers.0."): array for name, array in w.items()}
    inputs: list[np.ndarray] = []
    drafted: list[int] = []
    pairs = list(zip(states, following, strict=True))
    while True:
        for state, token in pairs:
            embedded = embedding[token] * (0.0 if hides_first and not inputs else 1.0)
            joined = [rms(embedded, e_norm + one), rms(state, h_norm + one)]
            inputs.append(fc @ np.concatenate(joined[::-1] if family == "mimo" else joined))
        if len(drafted) == num:
            return drafted
        made = decoder_layer(family, config, layer, np.stack(inputs), one)[-1]
        normed = rms(made, last_norm + one)
        drafted.append(int(np.argmax(output @ normed)))
        pairs = [(normed, drafted[-1])]


def rms(x: np.ndarray, weight: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rope(
    x: np.ndarray, dims: int, base: float, start: int = 0, adjacent: bool = False,
    scaling: dict[str, Any] | None = None,
) -> np.ndarray:  # fmt: skip
    """Rotate the first dims numbers of x (heads, places, head_dim).

    adjacent: in pairs of neighbours. scaling: as in Llama 3.1, whose slow frequencies are slower by a factor.
    """
    speeds = base ** (-np.arange(0, dims, 2) / dims)
    if scaling:
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = scaling["original_max_position_embeddings"] * speeds / (2 * np.pi)
        fast = np.clip((turns - low) / (high - low), 0, 1)
        speeds = fast * speeds + (1 - fast) * speeds / scaling["factor"]
    angles = np.arange(start, start + x.shape[1])[:, None] * speeds
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


def decoder_layer(
    family: str, c: dict[str, Any], w: Arrays, x: np.ndarray, one: float, mask: np.ndarray | None = None
) -> np.ndarray:
    """Apply a decoder layer to x (places, hidden). one: what norms lack. mask: see attention()."""
    if family == "nemotron_h":
        return nemotron_layers(c, w, x)
    x = x + attention(family, c, w, rms(x, w["input_layernorm.weight"] + one), one, mask)
    return x + mlp(c, w, rms(x, w["post_attention_layernorm.weight"] + one))


def attention(
    family: str, c: dict[str, Any], w: Arrays, n: np.ndarray, one: float, mask: np.ndarray | None = None
) -> np.ndarray:
    """Attend from n (places, any), which is normed.

    one: what norms lack. mask: (places, places) what each place sees; None for all before it.
    """
    a = {name: w.get(f"self_attn.{name}.weight") for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
    causal, d, base = np.tri(len(n), dtype=bool) if mask is None else mask, c["head_dim"], c["rope_theta"]
    if family in LATENT:
        seen = latent_attention(family, c, w, n, causal)
    else:
        biases = (w.get(f"self_attn.{name}_proj.bias", 0.0) for name in "qkv")
        q, k, v = (heads_of(n @ a[f"{m}_proj"].T + b, d) for m, b in zip("qkv", biases, strict=True))
        if family.startswith("qwen"):
            q, gate = np.split((n @ a["q_proj"].T).reshape(len(n), -1, 2 * d), 2, axis=-1)
            q = q.transpose(1, 0, 2)
        if "self_attn.q_norm.weight" in w:
            q, k = (rms(s, w[f"self_attn.{m}_norm.weight"] + one) for s, m in ((q, "q"), (k, "k")))
        dims = d if family in ("llama", "mimo") else int(d * c["partial_rotary_factor"])
        q, k = (rope(one, dims, base, scaling=c.get("rope_scaling")) for one in (q, k))
        seen = attend(q, k, v, causal)
        if family.startswith("qwen"):
            seen = seen * sigmoid(gate.reshape(len(n), -1))
    made: np.ndarray = seen @ a["o_proj"].T + w.get("self_attn.o_proj.bias", 0.0)
    return made


def nemotron_layers(c: dict[str, Any], w: Arrays, x: np.ndarray) -> np.ndarray:
    """Apply attention, which knows no positions, and experts with squared ReLUs."""
    n = rms(x, w["norm.weight"])
    q, k, v = (heads_of(n @ w[f"mixer.{m}_proj.weight"].T, c["head_dim"]) for m in "qkv")
    x = x + attend(q, k, v, np.tri(len(x), dtype=bool)) @ w["mixer.o_proj.weight"].T
    n = rms(x, w["layers.1.norm.weight"])

    def relu2(prefix: str, x: np.ndarray) -> np.ndarray:
        up, down = (w[f"layers.1.mixer.{prefix}.{part}_proj.weight"] for part in ("up", "down"))
        return np.maximum(x @ up.T, 0.0) ** 2 @ down.T

    gate = "layers.1.mixer.gate"
    scores = sigmoid(n @ w[f"{gate}.weight"].T)
    out = relu2("shared_experts", n)
    for place, row in enumerate(scores):
        chosen = np.argsort(row + w[f"{gate}.e_score_correction_bias"])[-c["num_experts_per_tok"] :]
        shares = row[chosen] / row[chosen].sum() * c["routed_scaling_factor"]
        for share, e in zip(shares, chosen, strict=True):
            out[place] += share * relu2(f"experts.{e}", n[place : place + 1])[0]
    return x + out


def chosen_positions(family: str, c: dict[str, Any], a: Arrays, n: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return which positions each place sees, (places, places): DeepSeek-V3.2 (arXiv:2512.02556), 2.1."""
    k = n @ a["indexer.wk.weight"].T
    k = (k - k.mean(-1, keepdims=True)) / np.sqrt(k.var(-1, keepdims=True) + 1e-5)
    k = (k * a["indexer.k_norm.weight"] + a["indexer.k_norm.bias"])[None]
    q = heads_of(q @ a["indexer.wq_b.weight"].T, c["index_head_dim"])
    ways = c["qk_rope_head_dim"], c["rope_theta"], 0, family == "glm_moe_dsa"
    scores = np.maximum(rope(q, *ways) @ rope(k, *ways).transpose(0, 2, 1), 0.0)
    weighed = (scores * (n @ a["indexer.weights_proj.weight"].T).T[..., None]).sum(0)
    weighed = np.where(np.tri(len(n), dtype=bool), weighed, -np.inf)
    place_of = np.argsort(np.argsort(-weighed, axis=-1), axis=-1)
    return place_of < c["index_topk"]


def latent_attention(
    family: str, c: dict[str, Any], w: Arrays, n: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    nope, rot, v_dim = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    a = {name.removeprefix("self_attn."): array for name, array in w.items() if name.startswith("self_attn.")}
    eps = 1e-5 if family == "glm4_moe_lite" else 1e-6
    q = rms(n @ a["q_a_proj.weight"].T, a["q_a_layernorm.weight"], eps)
    if family in SPARSE:
        mask = mask & chosen_positions(family, c, a, n, q)
    q = q @ a["q_b_proj.weight"].T
    latent, k_rot = np.split(n @ a["kv_a_proj_with_mqa.weight"].T, [c["kv_lora_rank"]], axis=-1)
    kv = heads_of(rms(latent, a["kv_a_layernorm.weight"], eps) @ a["kv_b_proj.weight"].T, nope + v_dim)
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
    """Draft as published, without a cache: DFlash (arXiv:2602.06036). states: (positions, taps * hidden).

    If nothing is said, sliding layers are causal, as SpecForge trains them.
    """
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
        is_sliding = kind == "sliding_attention"
        is_causal = c["dflash_config"].get("causal", is_sliding)
        at, of = np.arange(len(x))[:, None], np.arange(-length, len(x))
        mask = (of <= at) | (not is_causal)
        if is_sliding:
            mask = mask & ((of >= 0) | (of > at * is_causal - c["sliding_window"]))
        x = x + attend(q, k, v, mask) @ a["o_proj"].T
        x = x + mlp(c, p, rms(x, p["post_attention_layernorm.weight"]))
    return [int(token) for token in np.argmax(rms(x[1:], w["norm.weight"]) @ output.T, -1)]


def tiny_assistant(config: dict[str, Any]) -> Arrays:
    """Make the arrays of Gemma 4's assistant, by their published names."""
    t, backbone = config["text_config"], config["backbone_hidden_size"]
    h, i, vocab = t["hidden_size"], t["intermediate_size"], t["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "pre_projection.weight": (h, 2 * backbone), "post_projection.weight": (backbone, h),
        "model.embed_tokens.weight": (vocab, h), "model.norm.weight": (h,),
    }  # fmt: skip
    norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    for number, kind in enumerate(t["layer_types"]):
        wide = t["num_attention_heads"] * t["head_dim" if kind == "sliding_attention" else "global_head_dim"]
        parts = {f"{norm}_layernorm": (h,) for norm in norms}
        parts |= {"self_attn.q_proj": (wide, h), "self_attn.o_proj": (h, wide)}
        parts |= {"self_attn.q_norm": (wide // t["num_attention_heads"],)}
        parts |= {f"mlp.{part}": _matrix(part, h, i) for part in DENSE}
        shapes |= {f"model.layers.{number}.{name}.weight": shape for name, shape in parts.items()}
    arrays = random_arrays(shapes)
    for number in range(len(t["layer_types"])):
        arrays[f"model.layers.{number}.layer_scalar"] = np.array([0.5 + number], np.float32)
    if config["use_ordered_embeddings"]:
        arrays |= random_arrays({"masked_embedding.centroids.weight": (config["num_centroids"], h)})
        order = np.random.default_rng(5).permutation(vocab)
        arrays["masked_embedding.token_ordering"] = order.astype(np.int64)
    return arrays


def draft_assistant(
    config: dict[str, Any], arrays: Arrays, embedding: np.ndarray, state: np.ndarray, last: int,
    held: dict[str, tuple[np.ndarray, np.ndarray]], num: int,
) -> list[int]:  # fmt: skip
    """Draft as published, from the target's whole keys and values (heads, positions, head_dim) by layer type.

    embedding: the target's scaled one. state: (hidden,) at the last position. last: the token after it.
    """
    t, drafted = config["text_config"], list[int]()
    w = {name.removeprefix("model."): array for name, array in arrays.items()}
    for _ in range(num):
        x = w["pre_projection.weight"] @ np.concatenate([embedding[last], state])
        for number, kind in enumerate(t["layer_types"]):
            prefix = f"layers.{number}."
            p = {name.removeprefix(prefix): one for name, one in w.items() if name.startswith(prefix)}
            keys, values = held[kind]
            d, at = keys.shape[-1], keys.shape[1]
            q = heads_of(rms(x, p["input_layernorm.weight"])[None] @ p["self_attn.q_proj.weight"].T, d)
            q = rms(q, p["self_attn.q_norm.weight"])
            # A quarter of a full layer's pairs is turned, by angles as if all were.
            base, turned = (1e4, d // 2) if kind == "sliding_attention" else (1e6, d // 8)
            angles = at * base ** (-np.arange(d // 2) * 2 / d) * (np.arange(d // 2) < turned)
            low, high = np.split(q, 2, axis=-1)
            cos, sin = np.cos(angles), np.sin(angles)
            q = np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)
            if kind == "sliding_attention":
                first = max(0, keys.shape[1] + 1 - t["sliding_window"])
                keys, values = keys[:, first:], values[:, first:]
            # These are not scaled.
            seen = attend(q * d**0.5, keys, values, None)[0] @ p["self_attn.o_proj.weight"].T
            x = x + rms(seen, p["post_attention_layernorm.weight"])
            n = rms(x, p["pre_feedforward_layernorm.weight"])
            gate, up, down = (p[f"mlp.{part}.weight"] for part in DENSE)
            g = gate @ n
            g = 0.5 * g * (1 + np.tanh((2 / np.pi) ** 0.5 * (g + 0.044715 * g**3)))
            x = x + rms(down @ (g * (up @ n)), p["post_feedforward_layernorm.weight"])
            x = x * p["layer_scalar"]
        x = rms(x, w["norm.weight"])
        state, logits = w["post_projection.weight"] @ x, w["embed_tokens.weight"] @ x
        if config["use_ordered_embeddings"]:
            best = np.argsort(w["masked_embedding.centroids.weight"] @ x)
            best = best[-config["centroid_intermediate_top_k"] :]
            chosen = w["masked_embedding.token_ordering"].reshape(config["num_centroids"], -1)[best].ravel()
            logits = np.where(np.isin(np.arange(len(logits)), chosen), logits, -np.inf)
        last = int(np.argmax(logits))
        drafted.append(last)
    return drafted


def tiny_eagle(config: dict[str, Any], num_taps: int) -> Arrays:
    """Make an EAGLE-3 head's arrays, with the names of its module. config: that of its layers, and flags."""
    h, i, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv, read = (
        config["num_attention_heads"],
        config["num_key_value_heads"],
        num_taps * config["tap_size"],
    )
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (h, read), "norm.weight": (h,)}
    for layer in range(config["num_hidden_layers"]):
        width = h if layer else 2 * h
        parts: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj": (heads * d, width), "self_attn.k_proj": (kv * d, width),
            "self_attn.v_proj": (kv * d, width), "self_attn.o_proj": (h, heads * d),
            "input_layernorm": (h,), "post_attention_layernorm": (h,),
            **{f"mlp.{part}": _matrix(part, h, i) for part in DENSE},
        }  # fmt: skip
        parts |= {} if layer else {"hidden_norm": (h,)}
        if config["model_type"] == "qwen3":
            parts |= {"self_attn.q_norm": (d,), "self_attn.k_norm": (d,)}
        shapes |= {f"layers.{layer}.{name}.weight": shape for name, shape in parts.items()}
        if config.get("attention_bias"):
            shapes |= {f"layers.{layer}.{name}.bias": parts[name][:1] for name in parts if "_proj" in name
                       and "attn" in name}  # fmt: skip
    if config.get("norm_before_fc"):
        shapes["input_norm.weight"] = (read,)
    if config.get("fc_norm"):
        shapes |= {f"fc_norm.{tap}.weight": (config["tap_size"],) for tap in range(num_taps)}
    if config["tap_size"] != h:
        shapes["embed_tokens.weight"] = (config["vocab_size"], h)
    arrays = random_arrays(shapes)
    if num := config.get("draft_vocab_size"):
        arrays |= random_arrays({"lm_head.weight": (num, h)})
        kept = np.sort(np.random.default_rng(5).permutation(config["vocab_size"])[:num])
        if num != config["vocab_size"]:
            arrays["d2t"] = kept - np.arange(num)
    return arrays


def draft_eagle(
    c: dict[str, Any], w: Arrays, ends: tuple[np.ndarray, np.ndarray],
    states: np.ndarray, following: list[int], num: int,
) -> list[int]:  # fmt: skip
    """Draft as published, without a cache: EAGLE-3 (arXiv:2503.01840). states: (positions, taps * size).

    In sliding layers drafted tokens see what the newest position sees, and each other, as in speculators.
    """
    embedding, output = w.get("embed_tokens.weight", ends[0]), w.get("lm_head.weight", ends[1])
    layers = [
        {name.removeprefix(f"layers.{at}."): one for name, one in w.items() if f"layers.{at}." in name}
        for at in range(c["num_hidden_layers"])
    ]
    if "input_norm.weight" in w:
        states = rms(states, w["input_norm.weight"])
    if "fc_norm.0.weight" in w:
        parts = np.split(states, states.shape[1] // c["tap_size"], axis=1)
        states = np.concatenate([rms(p, w[f"fc_norm.{at}.weight"]) for at, p in enumerate(parts)], axis=1)
    h, tokens, drafted = states @ w["fc.weight"].T, list(following), list[int]()
    while len(drafted) < num:
        normed = rms(h, layers[0]["hidden_norm.weight"])
        both = np.concatenate([rms(embedding[tokens], layers[0]["input_layernorm.weight"]), normed], axis=1)
        x = normed if c.get("norm_before_residual") else h
        causal = np.tri(len(h), dtype=bool)
        known, of = np.minimum(np.arange(len(h)), len(states) - 1)[:, None], np.arange(len(h))
        sliding = causal & (of > known - (c.get("sliding_window") or len(h)))
        masks = [
            sliding if "sliding" in one else causal for one in c.get("layer_types") or [""] * len(layers)
        ]
        x = x + attention("llama", c, layers[0], both, 0.0, masks[0])
        x = x + mlp(c, layers[0], rms(x, layers[0]["post_attention_layernorm.weight"]))
        for layer, mask in zip(layers[1:], masks[1:], strict=True):
            x = decoder_layer("llama", c, layer, x, 0.0, mask)
        last = rms(x[-1], w["norm.weight"])
        best = int(np.argmax(output @ last))
        drafted.append(best + int(w["d2t"][best]) if "d2t" in w else best)
        h = np.concatenate([h, [last if c.get("norm_output") else x[-1]]])
        tokens.append(drafted[-1])
    return drafted
