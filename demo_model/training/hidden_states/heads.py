"""Train what drafts from the demo model's states: an MTP head and a DFlash drafter; evaluate them.

Both read states that `states.py` wrote, and use the demo model's embedding and output head, which never
change. `train.py --size mtp` and `--size dflash` call this module.

The MTP head (DeepSeek-V3, arXiv:2412.19437) is one layer, applied to its own output for every further token.
The DFlash drafter (arXiv:2602.06036) fills a whole block of masks in one pass.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from reprise.demo_model.training.hidden_states.states import KEPT_LAYERS, Answered
from reprise.demo_model.training.llama import Block, Model, load_weights, rotate
from reprise.demo_model.training.sizes import CONFIG, ROOT

NUM_RECURSIONS = 3
BLOCK_SIZE = 8
NUM_DFLASH_LAYERS = 2
TAPS = (1, 3, 5)
# An ordinary token that conversations never hold.
MASK = 0
START_STRENGTH = 0.3
MTP_CONFIG = {
    "architectures": ["LlamaMTP"],
    "model_type": "llama_mtp",
    "block_size": NUM_RECURSIONS + 1,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "text_config": CONFIG | {"num_hidden_layers": 1, "num_nextn_predict_layers": 1},
}
DFLASH_CONFIG = CONFIG | {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "num_hidden_layers": NUM_DFLASH_LAYERS,
    "attention_bias": False,
    "num_target_layers": CONFIG["num_hidden_layers"],
    "block_size": BLOCK_SIZE,
    "layer_types": ["full_attention"] * NUM_DFLASH_LAYERS,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(TAPS)},
}


class Layer(Block):
    """A decoder layer whose queries see given context and what was drafted before them.

    normed: whether queries and keys are normed in each head, as in Qwen3.
    """

    def __init__(self, normed: bool) -> None:
        super().__init__()
        for name in ("q_norm", "k_norm") if normed else ():
            self.self_attn[name] = nn.RMSNorm(CONFIG["head_dim"], CONFIG["rms_norm_eps"])

    def keys(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values (rows, heads, count, head_dim) of x (rows, count, hidden)."""
        return self._heads(x, "k", positions), self._heads(x, "v")

    def forward(self, x: Tensor, positions: Tensor, context: "Context", own: tuple[Tensor, Tensor]) -> Tensor:
        """Apply the layer to groups of queries that see the context before them and their own keys.

        x: (rows, groups * width, hidden). own: keys and values (rows, heads, groups, count, head_dim).
        """
        rows, total, _ = x.shape
        groups = context.seen.shape[2]
        q = self._heads(self.input_layernorm(x), "q", positions) * CONFIG["head_dim"] ** -0.5
        of_context = (q @ context.keys.mT).unflatten(2, (groups, -1))
        of_context = of_context.masked_fill(~context.seen[:, :, :, None], -torch.inf)
        of_own = q.unflatten(2, (groups, -1)) @ own[0].mT
        weights = torch.cat((of_context, of_own), -1).softmax(-1)
        length = context.keys.shape[2]
        mixed = weights[..., :length].flatten(2, 3) @ context.values
        mixed = mixed + (weights[..., length:] @ own[1]).flatten(2, 3)
        x = x + self.self_attn["o_proj"](mixed.transpose(1, 2).reshape(rows, total, -1))
        h = self.post_attention_layernorm(x)
        return x + self.mlp["down_proj"](F.silu(self.mlp["gate_proj"](h)) * self.mlp["up_proj"](h))

    def _heads(self, x: Tensor, name: str, positions: Tensor | None = None) -> Tensor:
        """Project x to heads, (rows, heads, count, head_dim); with positions, norm and rotate them."""
        made = self.self_attn[f"{name}_proj"](x).unflatten(-1, (-1, CONFIG["head_dim"]))
        if positions is None:
            return made.transpose(1, 2)
        if f"{name}_norm" in self.self_attn:
            made = self.self_attn[f"{name}_norm"](made)
        half = CONFIG["head_dim"] // 2
        inverse = CONFIG["rope_theta"] ** (-torch.arange(half) / half)
        angles = (positions[..., None].float() * inverse)[:, None]
        return rotate(made.transpose(1, 2), angles.cos(), angles.sin())


class Context:
    """Keys and values of a layer's context, and which of them each group of queries sees.

    keys, values: (rows, heads, length, head_dim). seen: (rows, 1, groups, length) bool.
    """

    def __init__(self, pair: tuple[Tensor, Tensor], seen: Tensor) -> None:
        self.keys, self.values = pair
        self.seen = seen[:, None]


class Mtp(nn.Module):
    """One layer that reads a state and the embedding of the token behind it, and predicts the next token.

    Its own output, behind `norm`, takes the state's place for each further token.
    """

    def __init__(self) -> None:
        super().__init__()
        d, eps = CONFIG["hidden_size"], CONFIG["rms_norm_eps"]
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = nn.RMSNorm(d, eps), nn.RMSNorm(d, eps)
        self.fc = nn.Linear(2 * d, d, bias=False)
        nn.init.normal_(self.fc.weight, std=(2 * d) ** -0.5)
        self.layers = nn.ModuleList([Layer(normed=False)])
        self.norm = nn.RMSNorm(d, eps)

    def start_from(self, target: Model) -> None:
        """Start as the target's last layer, at less than full strength, on a random mix of both inputs."""
        start_layers(self.layers, target)

    def forward(self, batch: "Batch", target: Model, anchors: Tensor, width: int) -> Tensor:
        """Return the drafts' states (rows, anchors, width, hidden); draft k predicts token anchor + 1 + k.

        anchors: (rows, count) positions of the tokens behind which is drafted. The state of the token before
        each is read. Embeddings are of the true tokens: a draft counts only while those before it are right.
        """
        embedded = target.embed_tokens(batch.tokens)
        x = self._mix(embedded[:, 1:], batch.last[:, :-1])
        layer, positions = self.layers[0], torch.arange(x.shape[1])[None]
        seen = positions[:, None] < anchors[..., None]
        context = Context(layer.keys(layer.input_layernorm(x), positions), seen)
        own: list[tuple[Tensor, Tensor]] = []
        x = self._at(x, anchors - 1)
        made: list[Tensor] = []
        for step in range(width):
            at = anchors - 1 + step
            if step:
                x = self._mix(self._at(embedded, anchors + step), made[-1])
                own.append(layer.keys(layer.input_layernorm(x), at))
            made.append(self.norm(layer(x, at, context, self._stacked(own, context, at.shape[1]))))
        return torch.stack(made, 2)

    def _mix(self, embedded: Tensor, states: Tensor) -> Tensor:
        pair = self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(states)
        return self.fc(torch.cat(pair, -1))

    @staticmethod
    def _stacked(own: list[tuple[Tensor, Tensor]], context: Context, groups: int) -> tuple[Tensor, Tensor]:
        """Return keys and values (rows, heads, groups, steps, head_dim) of the steps so far."""
        if not own:
            none = context.keys[:, :, :1, None].expand(-1, -1, groups, -1, -1)[..., :0, :]
            return none, none
        keys, values = (torch.stack(ts, 3) for ts in zip(*own, strict=True))
        return keys, values

    @staticmethod
    def _at(x: Tensor, places: Tensor) -> Tensor:
        """Return x (rows, length, hidden) at places (rows, count); those behind the end are clamped."""
        places = places.clamp(max=x.shape[1] - 1)
        return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))


class Dflash(nn.Module):
    """Layers that fill a block of masks in one pass, from states of some of the target's layers."""

    def __init__(self) -> None:
        super().__init__()
        d, eps = CONFIG["hidden_size"], CONFIG["rms_norm_eps"]
        self.fc = nn.Linear(len(TAPS) * d, d, bias=False)
        nn.init.normal_(self.fc.weight, std=(len(TAPS) * d) ** -0.5)
        self.hidden_norm = nn.RMSNorm(d, eps)
        self.layers = nn.ModuleList(Layer(normed=True) for _ in range(NUM_DFLASH_LAYERS))
        self.norm = nn.RMSNorm(d, eps)

    def start_from(self, target: Model) -> None:
        """Start as the target's last layers, at less than full strength, on a random mix of its states."""
        start_layers(self.layers, target)

    def forward(self, batch: "Batch", target: Model, anchors: Tensor, width: int) -> Tensor:
        """Return the drafts' states (rows, anchors, width, hidden); draft k predicts token anchor + 1 + k.

        anchors: (rows, count) positions of the tokens that begin blocks; only states before them are seen.
        """
        rows, count = anchors.shape
        tapped = torch.cat([batch.layer(at) for at in TAPS], -1)
        context = self.hidden_norm(self.fc(tapped))
        positions = torch.arange(context.shape[1])[None]
        seen = positions[:, None] < anchors[..., None]
        places = (anchors[..., None] + torch.arange(width + 1)).flatten(1)
        block = torch.full((rows, count, width + 1), MASK)
        block[..., 0] = batch.tokens.gather(1, anchors)
        x = target.embed_tokens(block.flatten(1))
        for layer in self.layers:
            keys, values = layer.keys(layer.input_layernorm(x), places)
            own = keys.unflatten(2, (count, -1)), values.unflatten(2, (count, -1))
            x = layer(x, places, Context(layer.keys(context, positions), seen), own)
        return self.norm(x).unflatten(1, (count, width + 1))[:, :, 1:]


class Batch:
    """Samples stacked and padded on the right.

    tokens: (rows, length) ids. picked: (rows, length) bool, tokens of answers. last: (rows, length, hidden)
    states behind the target's final norm.
    """

    def __init__(self, samples: list[Answered], target: Model) -> None:
        self.tokens, self.picked, self._states = (
            nn.utils.rnn.pad_sequence([getattr(one, name) for one in samples], batch_first=True)
            for name in ("ids", "picked", "states")
        )
        self._states = self._states.float()
        self.last = target.norm(self.layer(KEPT_LAYERS[-1])).bfloat16().float()

    def layer(self, at: int) -> Tensor:
        """Return the states (rows, length, hidden) after one of the target's KEPT_LAYERS."""
        return self._states.unflatten(-1, (len(KEPT_LAYERS), -1))[:, :, KEPT_LAYERS.index(at)]

    def anchors(self, most: int) -> Tensor:
        """Return (rows, count) random places, at most so many, of answer tokens whose next is one too.

        Rows with fewer such places get others too, which `wanted` leaves out.
        """
        can = self.picked.clone()
        can[:, :-1] &= self.picked[:, 1:]
        can[:, -1] = False
        count = min(most, int(can.sum(1).max()))
        weights = can.float().clamp(min=1e-9)
        weights[:, 0] = 0.0
        return torch.multinomial(weights, max(1, count))

    def wanted(self, anchors: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return the tokens (rows, anchors, width) behind the anchors, and which are in the same answer."""
        places = anchors[..., None] + torch.arange(1, width + 1)
        is_inside = places < self.tokens.shape[1]
        places = places.clamp(max=self.tokens.shape[1] - 1).flatten(1)
        tokens, picked = (t.gather(1, places).unflatten(1, (-1, width)) for t in (self.tokens, self.picked))
        is_answer = (picked & is_inside).int().cumprod(-1).bool()
        return tokens, is_answer & self.picked.gather(1, anchors)[..., None]


def start_layers(layers: nn.ModuleList, target: Model) -> None:
    """Copy the target's last layers, and shrink what they add."""
    for layer, known in zip(layers, target.layers[-len(layers) :], strict=True):
        layer.load_state_dict(known.state_dict(), strict=False)
        for matrix in (layer.self_attn["o_proj"], layer.mlp["down_proj"]):
            matrix.weight.data.mul_(START_STRENGTH)


Head = Mtp | Dflash


def make_head(size: str) -> Head:
    """Return a new head: `mtp` or `dflash`."""
    return Mtp() if size == "mtp" else Dflash()


def load_target() -> Model:
    """Return the demo model with weights in float32."""
    model = Model()
    load_weights(model, ROOT / "demo_model")
    return model.eval().requires_grad_(False)


def load(size: str, folder: Path) -> Head:
    """Load an exported head for evaluation."""
    head = make_head(size)
    weights = load_file(folder / "model.safetensors")
    head.load_state_dict({name: value.float() for name, value in weights.items()})
    return head.eval().requires_grad_(False)
