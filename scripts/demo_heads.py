"""Train what drafts from the demo model's states: an MTP head and a DFlash drafter; evaluate them.

Both read states that `demo_states.py` wrote, and use the demo model's embedding and output head, which never
change. `train_demo_model.py --size mtp` and `--size dflash` call this module.

The MTP head (DeepSeek-V3, arXiv:2412.19437) is one layer, applied to its own output for every further token.
The DFlash drafter (arXiv:2602.06036) fills a whole block of masks in one pass.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import demo_states
import torch
import torch.nn.functional as F
import train_demo_model as demo
from demo_states import KEPT_LAYERS, Answered
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

NUM_RECURSIONS = 3
# The weight of each further token of an MTP draft relative to the one before it.
RECURSION_DECAY = 0.6
BLOCK_SIZE = 8
# A DFlash slot's weight is exp(-(slot - 1) / SLOT_DECAY).
SLOT_DECAY = 4.0
SHARE_OF_SHORT_BLOCKS = 0.2
NUM_DFLASH_LAYERS = 2
TAPS = (1, 3, 5)
# An ordinary token that conversations never hold.
MASK = 0
START_STRENGTH = 0.3
MOST_ANCHORS = {"mtp": 48, "dflash": 24}
BATCH_TOKENS = 2500
# Batches of similar length are made from this many samples at a time.
POOL_SAMPLES = 200
PEAK_RATE, NORM_RATE = 2.4e-3, 1.5e-3
MTP_CONFIG = {
    "architectures": ["LlamaMTP"],
    "model_type": "llama_mtp",
    "block_size": NUM_RECURSIONS + 1,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "text_config": demo.CONFIG | {"num_hidden_layers": 1, "num_nextn_predict_layers": 1},
}
DFLASH_CONFIG = demo.CONFIG | {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "num_hidden_layers": NUM_DFLASH_LAYERS,
    "attention_bias": False,
    "num_target_layers": demo.CONFIG["num_hidden_layers"],
    "block_size": BLOCK_SIZE,
    "layer_types": ["full_attention"] * NUM_DFLASH_LAYERS,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(TAPS)},
}


class Layer(demo.Block):
    """A decoder layer whose queries see given context and what was drafted before them.

    normed: whether queries and keys are normed in each head, as in Qwen3.
    """

    def __init__(self, normed: bool) -> None:
        super().__init__()
        for name in ("q_norm", "k_norm") if normed else ():
            self.self_attn[name] = nn.RMSNorm(demo.CONFIG["head_dim"], demo.CONFIG["rms_norm_eps"])

    def keys(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values (rows, heads, count, head_dim) of x (rows, count, hidden)."""
        return self._heads(x, "k", positions), self._heads(x, "v")

    def forward(self, x: Tensor, positions: Tensor, context: "Context", own: tuple[Tensor, Tensor]) -> Tensor:
        """Apply the layer to groups of queries that see the context before them and their own keys.

        x: (rows, groups * width, hidden). own: keys and values (rows, heads, groups, count, head_dim).
        """
        rows, total, _ = x.shape
        groups = context.seen.shape[2]
        q = self._heads(self.input_layernorm(x), "q", positions) * demo.CONFIG["head_dim"] ** -0.5
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
        made = self.self_attn[f"{name}_proj"](x).unflatten(-1, (-1, demo.CONFIG["head_dim"]))
        if positions is None:
            return made.transpose(1, 2)
        if f"{name}_norm" in self.self_attn:
            made = self.self_attn[f"{name}_norm"](made)
        half = demo.CONFIG["head_dim"] // 2
        inverse = demo.CONFIG["rope_theta"] ** (-torch.arange(half) / half)
        angles = (positions[..., None].float() * inverse)[:, None]
        return demo.rotate(made.transpose(1, 2), angles.cos(), angles.sin())


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
        d, eps = demo.CONFIG["hidden_size"], demo.CONFIG["rms_norm_eps"]
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = nn.RMSNorm(d, eps), nn.RMSNorm(d, eps)
        self.fc = nn.Linear(2 * d, d, bias=False)
        nn.init.normal_(self.fc.weight, std=(2 * d) ** -0.5)
        self.layers = nn.ModuleList([Layer(normed=False)])
        self.norm = nn.RMSNorm(d, eps)

    def start_from(self, target: demo.Model) -> None:
        """Start as the target's last layer, at less than full strength, on a random mix of both inputs."""
        start_layers(self.layers, target)

    def forward(self, batch: "Batch", target: demo.Model, anchors: Tensor, width: int) -> Tensor:
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
        d, eps = demo.CONFIG["hidden_size"], demo.CONFIG["rms_norm_eps"]
        self.fc = nn.Linear(len(TAPS) * d, d, bias=False)
        nn.init.normal_(self.fc.weight, std=(len(TAPS) * d) ** -0.5)
        self.hidden_norm = nn.RMSNorm(d, eps)
        self.layers = nn.ModuleList(Layer(normed=True) for _ in range(NUM_DFLASH_LAYERS))
        self.norm = nn.RMSNorm(d, eps)

    def start_from(self, target: demo.Model) -> None:
        """Start as the target's last layers, at less than full strength, on a random mix of its states."""
        start_layers(self.layers, target)

    def forward(self, batch: "Batch", target: demo.Model, anchors: Tensor, width: int) -> Tensor:
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

    def __init__(self, samples: list[Answered], target: demo.Model) -> None:
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


def start_layers(layers: nn.ModuleList, target: demo.Model) -> None:
    """Copy the target's last layers, and shrink what they add."""
    for layer, known in zip(layers, target.layers[-len(layers) :], strict=True):
        layer.load_state_dict(known.state_dict(), strict=False)
        for matrix in (layer.self_attn["o_proj"], layer.mlp["down_proj"]):
            matrix.weight.data.mul_(START_STRENGTH)


Head = Mtp | Dflash


def make_head(size: str) -> Head:
    """Return a new head: `mtp` or `dflash`."""
    return Mtp() if size == "mtp" else Dflash()


def load_target() -> demo.Model:
    """Return the demo model with weights in float32."""
    model = demo.Model()
    demo.load_weights(model, demo.ROOT / "demo_model")
    return model.eval().requires_grad_(False)


def batches(samples: list[Answered], rng: random.Random, target: demo.Model) -> Iterator[Batch]:
    """Yield batches of samples of similar length without end."""
    while True:
        shuffled = rng.sample(samples, len(samples))
        for at in range(0, len(samples), POOL_SAMPLES):
            groups = demo.grouped(shuffled[at : at + POOL_SAMPLES], lambda one: len(one.ids), BATCH_TOKENS)
            rng.shuffle(groups)
            for group in groups:
                yield Batch(group, target)


class Training:
    """A training run: the head, the target, the optimizers and the time spent."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.size = arguments, arguments.size
        self.checkpoint: Path = arguments.work / f"{self.size}.pt"
        self.target, self.head = load_target(), make_head(self.size)
        self.head.start_from(self.target)
        matrices = [p for p in self.head.parameters() if p.ndim == 2]
        norms = [p for p in self.head.parameters() if p.ndim == 1]
        self.optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.AdamW(norms, lr=NORM_RATE, betas=(0.9, 0.98), weight_decay=0.0), NORM_RATE),
            (demo.Muon(matrices, lr=PEAK_RATE, weight_decay=0.01, dtype=torch.bfloat16), PEAK_RATE),
        ]
        self.seconds, self.step = 0.0, 0
        if self.checkpoint.exists():
            state = torch.load(self.checkpoint, weights_only=True)
            self.head.load_state_dict(state["head"])
            for (optimizer, _), saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.seconds, self.step = state["seconds"], state["step"]

    @property
    def progress(self) -> float:
        """The share of the training time that has passed."""
        return min(1.0, self.seconds / 60 / self.arguments.minutes)

    def update(self, batch: Batch) -> tuple[float, float]:
        """Train on one batch. Return the loss and the mean number of right drafts."""
        width = NUM_RECURSIONS
        if self.size == "dflash":
            is_short = random.random() < SHARE_OF_SHORT_BLOCKS
            width = random.randint(1, BLOCK_SIZE - 2) if is_short else BLOCK_SIZE - 1
        decay = RECURSION_DECAY if self.size == "mtp" else torch.tensor(-1 / SLOT_DECAY).exp()
        anchors = batch.anchors(MOST_ANCHORS[self.size])
        wanted, counts = batch.wanted(anchors, width)
        with torch.autocast("cpu", torch.bfloat16):
            states = self.head(batch, self.target, anchors, width)
            logits = states[counts] @ self.target.embed_tokens.weight.T
        logits = logits.float()
        weight = (decay ** torch.arange(width)).expand(counts.shape)[counts]
        each = F.cross_entropy(logits, wanted[counts], reduction="none")
        loss = (each * weight).sum() / weight.sum()
        loss.backward()
        rate = min(1.0, (self.step + 1) / 50) * max(0.01, 1.0 - self.progress)
        demo.descend(self.head, self.optimizers, rate)
        self.step += 1
        is_right = torch.zeros_like(counts)
        is_right[counts] = logits.argmax(-1) == wanted[counts]
        return loss.item(), is_right.int().cumprod(-1).sum(-1)[counts.any(-1)].float().mean().item()

    def save(self) -> None:
        """Write the head and the optimizers."""
        state = {"head": self.head.state_dict(), "optimizers": [o.state_dict() for o, _ in self.optimizers]}
        demo.save_whole({**state, "seconds": self.seconds, "step": self.step}, self.checkpoint)


def train(arguments: argparse.Namespace) -> None:
    """Train or resume for the given minutes of processor time in one process, print progress, save often."""
    torch.set_num_threads(1)
    training = Training(arguments)
    torch.manual_seed(arguments.seed + training.step)
    random.seed(arguments.seed + training.step)
    rng = random.Random(f"{arguments.seed} {training.step}")
    stream = batches(demo_states.load(arguments.work), rng, training.target)
    seen: list[tuple[float, float]] = []
    last = time.process_time()
    while training.progress < 1.0:
        seen.append(training.update(next(stream)))
        now = time.process_time()
        training.seconds += now - last
        last = now
        if training.step % 50 == 0:
            loss, right = (sum(column) / len(seen) for column in zip(*seen, strict=True))
            print(
                f"minute {training.seconds / 60:.1f}, step {training.step}: loss {loss:.3f}, "
                f"right drafts {right:.3f}",
                flush=True,
            )
            seen = []
        if training.step % 100 == 0:
            training.save()
    training.save()


def export(size: str, work: Path, out: Path) -> None:
    """Write the checkpoint as a folder with a head: config.json, and weights in bfloat16."""
    out.mkdir(parents=True, exist_ok=True)
    head = make_head(size)
    head.load_state_dict(torch.load(work / f"{size}.pt", weights_only=True)["head"])
    weights = {name: value.bfloat16().contiguous() for name, value in head.state_dict().items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "mlx"})
    config = MTP_CONFIG if size == "mtp" else DFLASH_CONFIG
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load(size: str, folder: Path) -> Head:
    """Load an exported head for evaluation."""
    head = make_head(size)
    weights = load_file(folder / "model.safetensors")
    head.load_state_dict({name: value.float() for name, value in weights.items()})
    return head.eval().requires_grad_(False)


def run(arguments: argparse.Namespace) -> None:
    """Write states, evaluate, or train and export, as the command line of train_demo_model.py says."""
    if arguments.size == "states":
        demo_states.write(arguments)
        return
    if arguments.evaluate:
        import_module("demo_drafts").evaluate(arguments.count, seed=2_000_000)
        return
    if not arguments.export:
        train(arguments)
    export(arguments.size, arguments.work, arguments.out)
