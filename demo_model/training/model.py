"""A Llama in torch, with the parameter names that mlx-lm expects; its sizes, weights and optimizers."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[2]
BUNDLED = ROOT / "demo_model"
DEMO: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 192,
    "num_hidden_layers": 6,
    "intermediate_size": 384,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "vocab_size": 4096,
    # Agents begin with prompts of tens of thousands of tokens. Training samples have up to 3,000.
    "max_position_embeddings": 65536,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
DRAFT = DEMO | {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
}

# Cosine and sine (batch, 1, length, head_dim / 2) of the angles of rotary positions.
Angles = tuple[Tensor, Tensor]
# Keys and values (batch, heads, length, head_dim).
Keys = tuple[Tensor, Tensor]


def frequencies() -> Tensor:
    """Return the (head_dim / 2,) angles by which a position rotates."""
    half = DEMO["head_dim"] // 2
    return DEMO["rope_theta"] ** (-torch.arange(half) / half)


def angles(positions: Tensor) -> Angles:
    """Return the angles of positions (batch, length)."""
    made = (positions[..., None].float() * frequencies())[:, None]
    return made.cos(), made.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x (..., head_dim) by the angles of its positions: cos, sin (..., head_dim / 2)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def joined_keys(first: Keys, second: Keys) -> Keys:
    """Return the keys and values of both, one behind the other."""
    return torch.cat((first[0], second[0]), 2), torch.cat((first[1], second[1]), 2)


class Block(nn.Module):
    """One Llama layer: attention with rotary positions, then a gated MLP.

    normed: whether queries and keys are normed in each head, as in Qwen3. reads: the size of what attention
    reads, if it is not the hidden size.
    """

    def __init__(self, config: dict[str, Any], normed: bool = False, reads: int | None = None) -> None:
        super().__init__()
        d, hidden, eps = config["hidden_size"], config["intermediate_size"], config["rms_norm_eps"]
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(d, eps), nn.RMSNorm(d, eps)
        self.self_attn = nn.ModuleDict({f"{n}_proj": nn.Linear(reads or d, d, bias=False) for n in "qkv"})
        self.self_attn["o_proj"] = nn.Linear(d, d, bias=False)
        if normed:
            self.self_attn.update({f"{n}_norm": nn.RMSNorm(config["head_dim"], eps) for n in "qk"})
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(d, hidden, bias=False),
                "up_proj": nn.Linear(d, hidden, bias=False),
                "down_proj": nn.Linear(hidden, d, bias=False),
            }
        )

    def forward(self, x: Tensor, at: Angles, seen: Tensor | None = None, keys: Keys | None = None) -> Tensor:
        """Apply the layer to x (batch, length, hidden).

        seen: (batch, 1, length, keys) bool, the keys that each query sees; None means causal.
        keys: what queries see, by default the keys and values of x.
        """
        h = self.normed(x)
        k, v = keys or self.keys(h, at)
        mixed = F.scaled_dot_product_attention(
            rotate(self._heads("q", h), *at), k, v, attn_mask=seen, is_causal=seen is None
        )
        attended = self.self_attn["o_proj"](mixed.transpose(1, 2).flatten(2))
        x = x[..., -attended.shape[-1] :] + attended
        h = self.post_attention_layernorm(x)
        return x + self.mlp["down_proj"](F.silu(self.mlp["gate_proj"](h)) * self.mlp["up_proj"](h))

    def normed(self, x: Tensor) -> Tensor:
        """Return what attention reads of x."""
        return self.input_layernorm(x)

    def keys(self, h: Tensor, at: Angles) -> Keys:
        """Return the keys and values of h (batch, length, hidden), which is already normed."""
        return rotate(self._heads("k", h), *at), self._heads("v", h)

    def _heads(self, name: str, h: Tensor) -> Tensor:
        made = self.self_attn[f"{name}_proj"](h).unflatten(-1, (-1, DEMO["head_dim"]))
        if f"{name}_norm" in self.self_attn:
            made = self.self_attn[f"{name}_norm"](made)
        return made.transpose(1, 2)


class Model(nn.Module):
    """A Llama with the parameter names that mlx-lm expects."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Block(config) for _ in range(config["num_hidden_layers"]))
        self.norm = nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        nn.init.normal_(self.embed_tokens.weight, std=0.05)
        for name, parameter in self.layers.named_parameters():
            if parameter.ndim == 2:
                scale = 0.05 if "o_proj" in name or "down_proj" in name else 1.0
                nn.init.normal_(parameter, std=scale * parameter.shape[1] ** -0.5)
        with torch.no_grad():
            self._start_copying()

    def _start_copying(self) -> None:
        """Initialize induction heads (Olsson et al. 2022) by hand, so that copying need not be discovered.

        Two heads of the first layer attend to the previous token and pass on a sketch (a projection) of it.
        In the next three layers, two heads attend to positions whose sketch matches the current token, and
        copy the token there. The sketches use the slow rotary dimensions, which keep their phase over long
        distances. Training then changes all of these weights.
        """
        d, width = self.embed_tokens.embedding_dim, DEMO["head_dim"]
        turn = frequencies()
        fast = torch.arange(width // 2)
        slow = torch.cat((fast[width // 4 :], fast[width // 4 :] + width // 2))
        # Embeddings of equal norm: otherwise a head might attend to a large one instead of a position.
        self.embed_tokens.weight.copy_(0.05 * d**0.5 * F.normalize(self.embed_tokens.weight, dim=1))
        # A constant component, from which a head can make queries for a position.
        self.embed_tokens.weight[:, 0] = 0.2
        first = self.layers[0].self_attn
        for head in range(2):
            at = slice(head * width, (head + 1) * width)
            reads = torch.linalg.qr(torch.randn(d, width))[0].T
            reads[:, 0] = 0
            writes = torch.linalg.qr(torch.randn(d, width))[0]
            for name, phase in (("q_proj", 0 * turn), ("k_proj", turn)):
                first[name].weight[at] *= 0.1
                first[name].weight[at, 0] = 2.0 * torch.cat((phase.cos(), phase.sin())) * (fast < 6).repeat(2)
            first["v_proj"].weight[at] = reads
            first["o_proj"].weight[:, at] = 0.06 * writes
            for layer in self.layers[1:4]:
                attention = layer.self_attn
                for name, sketch in (("q_proj", reads), ("k_proj", writes.T)):
                    attention[name].weight[at] *= 0.1
                    attention[name].weight[at][slow] = 2.5 * sketch[slow]
                copied = torch.linalg.qr(torch.randn(d, width))[0]
                attention["v_proj"].weight[at] = copied.T
                attention["o_proj"].weight[:, at] = 0.6 * copied

    def read(self, x: Tensor) -> Tensor:
        """Return the logits of states after the last layer."""
        return self.norm(x) @ self.embed_tokens.weight.T

    def states(self, tokens: Tensor, positions: Tensor, seen: Tensor | None = None) -> list[Tensor]:
        """Return the states (batch, length, hidden) after each layer. seen: see Block.forward."""
        at, x, states = angles(positions), self.embed_tokens(tokens), []
        for layer in self.layers:
            x = layer(x, at, seen)
            states.append(x)
        return states


def load_weights(module: nn.Module, folder: Path) -> None:
    """Load the weights of an exported folder."""
    weights = load_file(folder / "model.safetensors")
    module.load_state_dict({name.removeprefix("model."): value.float() for name, value in weights.items()})


def load_demo_model() -> Model:
    """Return the bundled demo model in float32, to learn from it."""
    model = Model(DEMO)
    load_weights(model, BUNDLED)
    return model.eval().requires_grad_(False)


def make_optimizers(
    module: nn.Module, rate: float, rate_of_others: float, weight_decay: float
) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of layers, and AdamW for embeddings, output heads and norms."""
    matrices, others = [], []
    for name, parameter in module.named_parameters():
        is_matrix = parameter.ndim == 2 and not name.startswith(("embed_tokens", "lm_head"))
        (matrices if is_matrix else others).append(parameter)
    return [
        torch.optim.AdamW(others, lr=rate_of_others, betas=(0.9, 0.98), weight_decay=0.0),
        torch.optim.Muon(matrices, lr=rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
    ]
