"""A Llama in torch, with the parameter names that mlx-lm expects."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from reprise.demo_model.training.sizes import CONFIG

Past = dict["Block", tuple[Tensor, Tensor]]


class Block(nn.Module):
    """One Llama layer: attention with rotary positions, then a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        d, hidden = CONFIG["hidden_size"], CONFIG["intermediate_size"]
        self.input_layernorm = nn.RMSNorm(d, CONFIG["rms_norm_eps"])
        self.post_attention_layernorm = nn.RMSNorm(d, CONFIG["rms_norm_eps"])
        self.self_attn = nn.ModuleDict({f"{n}_proj": nn.Linear(d, d, bias=False) for n in "qkvo"})
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(d, hidden, bias=False),
                "up_proj": nn.Linear(d, hidden, bias=False),
                "down_proj": nn.Linear(hidden, d, bias=False),
            }
        )

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, seen: Tensor | None = None, past: Past | None = None
    ) -> Tensor:
        """Apply the layer. x: (batch, length, hidden); cos, sin: (batch, 1, length, head_dim / 2).

        seen: (batch, 1, length, keys) bool, the keys that each query sees; None means causal. past: the keys
        and values of earlier tokens by layer, to which this adds those of x.
        """
        batch, length, _ = x.shape
        h = self.input_layernorm(x)
        q, k, v = (
            self.self_attn[f"{n}_proj"](h).view(batch, length, -1, CONFIG["head_dim"]).transpose(1, 2)
            for n in "qkv"
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if past is not None:
            if self in past:
                k, v = (torch.cat(pair, dim=2) for pair in zip(past[self], (k, v), strict=True))
            past[self] = k, v
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=seen is None)
        x = x + self.self_attn["o_proj"](mixed.transpose(1, 2).reshape(batch, length, -1))
        h = self.post_attention_layernorm(x)
        return x + self.mlp["down_proj"](F.silu(self.mlp["gate_proj"](h)) * self.mlp["up_proj"](h))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x (..., head_dim) by the angles of its positions: cos, sin (..., head_dim / 2)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Model(nn.Module):
    """A Llama with the parameter names that mlx-lm expects."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(CONFIG["vocab_size"], CONFIG["hidden_size"])
        self.layers = nn.ModuleList(Block() for _ in range(CONFIG["num_hidden_layers"]))
        self.norm = nn.RMSNorm(CONFIG["hidden_size"], CONFIG["rms_norm_eps"])
        half = CONFIG["head_dim"] // 2
        self.register_buffer(
            "inverse", CONFIG["rope_theta"] ** (-torch.arange(half) / half), persistent=False
        )
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
        d, width = CONFIG["hidden_size"], CONFIG["head_dim"]
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
            for name, phase in (("q_proj", 0 * self.inverse), ("k_proj", self.inverse)):
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

    def forward(self, tokens: Tensor, positions: Tensor, picked: Tensor) -> Tensor:
        """Return logits (number picked, vocabulary) at the positions set in picked, (batch, length) bool."""
        return self.read(self.states(tokens, positions)[-1][picked])

    def read(self, x: Tensor) -> Tensor:
        """Return the logits of states after the last layer."""
        return self.norm(x) @ self.embed_tokens.weight.T

    def states(
        self, tokens: Tensor, positions: Tensor, seen: Tensor | None = None, past: Past | None = None
    ) -> list[Tensor]:
        """Return the states (batch, length, hidden) after each layer. seen, past: see Block.forward."""
        angles = (positions[..., None].float() * self.inverse)[:, None]
        cos, sin = angles.cos(), angles.sin()
        x = self.embed_tokens(tokens)
        states = []
        for layer in self.layers:
            x = layer(x, cos, sin, seen, past)
            states.append(x)
        return states


def load_weights(model: Model, folder: Path) -> None:
    """Load an exported folder's weights. Layers that it lacks are initialized to change nothing."""
    weights = load_file(folder / "model.safetensors")
    state = {name.removeprefix("model."): value.float() for name, value in weights.items()}
    model.load_state_dict(state, strict=False)
    for at, layer in enumerate(model.layers):
        if f"layers.{at}.self_attn.q_proj.weight" not in state:
            nn.init.zeros_(layer.self_attn["o_proj"].weight)
            nn.init.zeros_(layer.mlp["down_proj"].weight)


def save_whole(state: dict[str, Any], file: Path) -> None:
    """Write a checkpoint; the old file stays until the new one is complete."""
    new = file.with_suffix(".new")
    torch.save(state, new)
    new.replace(file)
