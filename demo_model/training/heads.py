"""Train what drafts from the demo model's states: an MTP head, an EAGLE-3 head and a DFlash drafter.

All use the demo model's embedding, and all but the EAGLE-3 head its output head; these never change.
The MTP head (DeepSeek-V3, arXiv:2412.19437) is one layer, applied to its own output for every further token.
The EAGLE-3 head (arXiv:2503.01840) is too, but reads several layers, and its own output head has few tokens.
The DFlash drafter (arXiv:2602.06036) fills a whole block of masks in one pass.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from reprise.demo_model.training.corpus import FAMILIES, Source, conversations
from reprise.demo_model.training.corpus.rendering import render
from reprise.demo_model.training.data import Sample, collate, encode, grouped, targets
from reprise.demo_model.training.model import (
    BUNDLED,
    DEMO,
    Block,
    Model,
    angles,
    joined_keys,
    load_demo_model,
    make_optimizers,
)

NUM_RECURSIONS, BLOCK_SIZE, NUM_DFLASH_LAYERS = 3, 8, 2
# The EAGLE-3 head drafts the most frequent tokens of so many samples, in training up to so many at a time.
NUM_EAGLE3_TOKENS, NUM_COUNTED, NUM_EAGLE3_RECURSIONS = 2400, 3000, 5
# Layers of the demo model whose outputs EAGLE-3 and DFlash read, counted from 0. The MTP head reads the last
# one's, behind the final norm.
TAPS = (1, 3, 5)
# MASK is an ordinary token that conversations never hold.
END, MASK = 2, 0
CONFIGS = {
    "mtp": {
        "architectures": ["LlamaMTP"],
        "model_type": "llama_mtp",
        "block_size": NUM_RECURSIONS + 1,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "text_config": DEMO | {"num_hidden_layers": 1, "num_nextn_predict_layers": 1},
    },
    "eagle3": DEMO
    | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "intermediate_size": 256,
        "tie_word_embeddings": False,
        "draft_vocab_size": NUM_EAGLE3_TOKENS,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(TAPS), "use_aux_hidden_state": True},
    },
    "dflash": DEMO
    | {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": NUM_DFLASH_LAYERS,
        "attention_bias": False,
        "num_target_layers": DEMO["num_hidden_layers"],
        "block_size": BLOCK_SIZE,
        "layer_types": ["full_attention"] * NUM_DFLASH_LAYERS,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(TAPS)},
    },
}
WIDTHS = {"mtp": NUM_RECURSIONS, "eagle3": NUM_EAGLE3_RECURSIONS, "dflash": BLOCK_SIZE - 1}
MOST_ANCHORS = {"mtp": 48, "eagle3": 48, "dflash": 24}
# The weight of each further token of a draft relative to the one before it.
DECAYS = {"mtp": 0.6, "eagle3": 0.8, "dflash": 0.7788}
SHARE_OF_SHORT_BLOCKS = 0.2
START_STRENGTH = 0.3
RATE, NORM_RATE = 2.4e-3, 1.5e-3
# What the heads learn from: samples of the demo model's mix, the rest of all families but one alike.
SHARE_OF_MIX, LONG_FAMILY, MOST_TOKENS, BATCH_TOKENS = 0.3, "edit of 60 lines", 1000, 2500
# The demo model answers this many samples at a time, and the heads learn from each of them so often.
POOL_SAMPLES, NUM_PASSES = 480, 4
# How often an answer is judged. The last time it is cut.
NUM_JUDGED = 4


class Batch:
    """Samples of similar length, padded on the right, with the demo model's own answers.

    tokens: (rows, length) ids. picked: (rows, length) bool, tokens of answers, the model's greedy choices.
    tapped: (rows, length, layers * hidden) bfloat16, outputs of the layers in TAPS. last: (rows, length,
    hidden) states behind the final norm.
    """

    @torch.no_grad()
    def __init__(self, model: Model, group: list[Sample], num_judged: int) -> None:
        """Let the model, as served, answer in place of the right answers.

        Where it chooses another token than the right answer, that token is put in its place and the rest is
        judged again, num_judged times in all. Then it is cut off behind the first such choice.
        """
        self.tokens, positions, self.picked = collate(group)
        for left in reversed(range(num_judged)):
            states = model.states(self.tokens, positions)
            before, _ = targets(self.tokens, self.picked)
            choices = self.tokens.clone()
            choices[self.picked] = model.read(states[-1][before]).argmax(-1)
            differs = choices != self.tokens
            for row in differs.any(1).nonzero()[:, 0].tolist():
                at = int(differs[row].int().argmax())
                self.tokens[row, at] = choices[row, at]
                if self.tokens[row, at] == END or not left:
                    self.picked[row, at + 1 :] = False
            if not differs.any():
                break
        # Where an answer was cut, the last state is that of the token that was replaced. No draft reads it.
        self.tapped = torch.cat([states[layer] for layer in TAPS], -1)
        self.last = model.norm(states[-1])

    def anchors(self, most: int) -> Tensor:
        """Return (rows, count) random places, at most so many, of answer tokens whose next is one too.

        Rows with fewer such places get others too, which `wanted` leaves out.
        """
        can = self.picked.clone()
        can[:, :-1] &= self.picked[:, 1:]
        can[:, -1] = False
        weights = can.float().clamp(min=1e-9)
        weights[:, 0] = 0.0
        return torch.multinomial(weights, max(1, min(most, int(can.sum(1).max()))))

    def wanted(self, anchors: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return the tokens (rows, anchors, width) behind the anchors, and which are in the same answer."""
        places = anchors[..., None] + torch.arange(1, width + 1)
        is_inside = places < self.tokens.shape[1]
        places = places.clamp(max=self.tokens.shape[1] - 1).flatten(1)
        tokens, picked = (t.gather(1, places).unflatten(1, (-1, width)) for t in (self.tokens, self.picked))
        is_answer = (picked & is_inside).int().cumprod(-1).bool()
        return tokens, is_answer & self.picked.gather(1, anchors)[..., None]


class Mtp(nn.Module):
    """One layer that reads a state and the embedding of the token behind it, and predicts the next token.

    Its own output, behind `norm`, takes the state's place for each further token.
    """

    recurses_normed = True

    def __init__(self) -> None:
        super().__init__()
        d, eps = DEMO["hidden_size"], DEMO["rms_norm_eps"]
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = nn.RMSNorm(d, eps), nn.RMSNorm(d, eps)
        self.fc = nn.Linear(2 * d, d, bias=False)
        self.layers = nn.ModuleList([Block(DEMO)])
        self.norm = nn.RMSNorm(d, eps)

    def forward(self, batch: Batch, target: Model, anchors: Tensor, width: int) -> Tensor:
        """Return the drafts' states (rows, anchors, width, hidden); draft k predicts token anchor + 1 + k.

        anchors: (rows, count) positions of the tokens behind which is drafted. The state of the token before
        each is read. Embeddings are of the true tokens: a draft counts only while those before it are right.
        """
        embedded, layer = target.embed_tokens(batch.tokens), self.layers[0]
        positions = torch.arange(embedded.shape[1] - 1)[None]
        known = self._known(batch)
        context = self._mix(embedded[:, 1:], known[:, :-1])
        keys = layer.keys(layer.normed(context), angles(positions))
        seen = positions[:, None] < anchors[..., None] - 1
        itself = torch.eye(anchors.shape[1], dtype=torch.bool).expand(len(anchors), -1, -1)
        state, made = rows_at(known, anchors - 1), []
        for step in range(width):
            x, at = self._mix(rows_at(embedded, anchors + step), state), angles(anchors - 1 + step)
            keys = joined_keys(keys, layer.keys(layer.normed(x), at))
            seen = torch.cat((seen, itself), -1)
            state = layer(x, at, seen[:, None], keys)
            made.append(self.norm(state))
            state = made[-1] if self.recurses_normed else state
        return torch.stack(made, 2)

    def read(self, states: Tensor, target: Model) -> Tensor:
        """Return the logits of a draft's states, over the demo model's tokens."""
        return states @ target.embed_tokens.weight.T

    def _known(self, batch: Batch) -> Tensor:
        return batch.last.float()

    def _mix(self, embedded: Tensor, states: Tensor) -> Tensor:
        return self.fc(torch.cat((self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(states)), -1))


def rows_at(x: Tensor, places: Tensor) -> Tensor:
    """Return x (rows, length, hidden) at places (rows, count); those behind the end are clamped."""
    places = places.clamp(max=x.shape[1] - 1)
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))


class Eagle3Layer(Block):
    """A layer that reads (batch, length, 2 * hidden): an embedding and a state, which it adds to."""

    def __init__(self) -> None:
        config = CONFIGS["eagle3"]
        super().__init__(config, reads=2 * config["hidden_size"])
        self.hidden_norm = nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])

    def normed(self, x: Tensor) -> Tensor:
        """Return both halves, each behind a norm of its own."""
        embedded, state = x.chunk(2, -1)
        return torch.cat((self.input_layernorm(embedded), self.hidden_norm(state)), -1)


class Eagle3(Mtp):
    """Like an MTP head, but its first state is made of several layers' outputs, and it recurses unnormed.

    d2t: (draft tokens,) what to add to a draft token's id to get the demo model's. t2d: (tokens,) bool, the
    demo model's tokens that can be drafted.
    """

    recurses_normed = False

    def __init__(self) -> None:
        nn.Module.__init__(self)
        d, eps = DEMO["hidden_size"], DEMO["rms_norm_eps"]
        self.fc = nn.Linear(len(TAPS) * d, d, bias=False)
        self.midlayer, self.norm = Eagle3Layer(), nn.RMSNorm(d, eps)
        self.lm_head = nn.Linear(d, NUM_EAGLE3_TOKENS, bias=False)
        counts = Counter[int]()
        for ids, picked in islice(samples(random.Random(0)), NUM_COUNTED):
            counts.update(token for token, is_picked in zip(ids, picked, strict=True) if is_picked)
        kept = torch.tensor(sorted(token for token, _ in counts.most_common(NUM_EAGLE3_TOKENS)))
        self.register_buffer("d2t", kept - torch.arange(NUM_EAGLE3_TOKENS))
        self.register_buffer(
            "t2d", torch.zeros(DEMO["vocab_size"], dtype=torch.bool).index_fill(0, kept, True)
        )

    @property
    def layers(self) -> list[Block]:
        return [self.midlayer]

    def read(self, states: Tensor, target: Model) -> Tensor:  # noqa: ARG002
        """Return the logits of a draft's states, over all tokens; -inf for those never drafted."""
        logits = states.new_full((*states.shape[:-1], len(self.t2d)), -torch.inf)
        logits[..., self.t2d] = self.lm_head(states).to(logits.dtype)
        return logits

    def _known(self, batch: Batch) -> Tensor:
        known: Tensor = self.fc(batch.tapped.float())
        return known

    def _mix(self, embedded: Tensor, states: Tensor) -> Tensor:
        return torch.cat((embedded, states.to(embedded.dtype)), -1)


class Dflash(nn.Module):
    """Layers that fill a block of masks in one pass, from states of some of the target's layers."""

    def __init__(self) -> None:
        super().__init__()
        d, eps = DEMO["hidden_size"], DEMO["rms_norm_eps"]
        self.fc = nn.Linear(len(TAPS) * d, d, bias=False)
        self.hidden_norm = nn.RMSNorm(d, eps)
        self.layers = nn.ModuleList(Block(DEMO, normed=True) for _ in range(NUM_DFLASH_LAYERS))
        self.norm = nn.RMSNorm(d, eps)

    def forward(self, batch: Batch, target: Model, anchors: Tensor, width: int) -> Tensor:
        """Return the drafts' states (rows, anchors, width, hidden); draft k predicts token anchor + 1 + k.

        anchors: (rows, count) positions of the tokens that begin blocks; only states before them are seen.
        """
        context = self.hidden_norm(self.fc(batch.tapped.float()))
        positions = torch.arange(context.shape[1])[None]
        places = anchors[..., None] + torch.arange(width + 1)
        block = torch.full_like(places, MASK)
        block[..., 0] = batch.tokens.gather(1, anchors)
        x, at = target.embed_tokens(block.flatten(1)), angles(places.flatten(1))
        in_block = torch.block_diag(*[torch.ones(width + 1, width + 1)] * anchors.shape[1]).bool()
        before = (positions[:, None] < anchors[..., None]).repeat_interleave(width + 1, 1)
        seen = torch.cat((before, in_block.expand(len(anchors), -1, -1)), -1)[:, None]
        for layer in self.layers:
            own = layer.keys(layer.input_layernorm(x), at)
            x = layer(x, at, seen, joined_keys(layer.keys(context, angles(positions)), own))
        return self.norm(x).unflatten(1, places.shape[1:])[:, :, 1:]

    def read(self, states: Tensor, target: Model) -> Tensor:
        """Return the logits of drafts' states, over the demo model's tokens."""
        return states @ target.embed_tokens.weight.T


KINDS: dict[str, type[Mtp] | type[Dflash]] = {"mtp": Mtp, "eagle3": Eagle3, "dflash": Dflash}


class Head:
    """An MTP head, an EAGLE-3 head or a DFlash drafter in training.

    It starts as the demo model's last layers, at less than full strength, on a random mix of its inputs.
    """

    tokenizer, prefix, written_by = None, "", "mlx"

    def __init__(self, size: str) -> None:
        self.size, self.config, self.target = size, CONFIGS[size], load_demo_model()
        self.model = KINDS[size]()
        nn.init.normal_(self.model.fc.weight, std=self.model.fc.in_features**-0.5)
        layers = self.model.layers
        for layer, known in zip(layers, self.target.layers[-len(layers) :], strict=True):
            start_as(layer, known)
            for matrix in (layer.self_attn["o_proj"], layer.mlp["down_proj"]):
                matrix.weight.data.mul_(START_STRENGTH)
        if isinstance(self.model, Eagle3):
            self.model.lm_head.weight.data.copy_(self.target.embed_tokens.weight[self.model.t2d])
            self.model.norm.load_state_dict(self.target.norm.state_dict())
        self.learned = nn.ModuleList([self.model])
        self.optimizers = make_optimizers(self.model, RATE, NORM_RATE, weight_decay=0.01)

    def batches(self, rng: random.Random, _progress: Callable[[], float]) -> Iterator[Batch]:
        """Yield batches without end, each several times, with the demo model's answers."""
        served, stream = load_demo_model().bfloat16(), samples(rng)
        while True:
            groups = grouped(list(islice(stream, POOL_SAMPLES)), lambda sample: len(sample[0]), BATCH_TOKENS)
            pool = [Batch(served, group, NUM_JUDGED) for group in groups]
            for _ in range(NUM_PASSES):
                rng.shuffle(pool)
                yield from pool

    def loss(self, batch: Batch, _progress: float) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of a batch, and what to report: the loss, and the mean number of right drafts."""
        width = WIDTHS[self.size]
        if self.size == "dflash" and random.random() < SHARE_OF_SHORT_BLOCKS:
            width = random.randint(1, width - 1)
        anchors = batch.anchors(MOST_ANCHORS[self.size])
        wanted, counts = batch.wanted(anchors, width)
        with torch.autocast("cpu", torch.bfloat16):
            states = self.model(batch, self.target, anchors, width)
            logits = self.model.read(states[counts], self.target)
        logits = logits.float()
        weight = (DECAYS[self.size] ** torch.arange(width)).expand(counts.shape)[counts]
        each = F.cross_entropy(logits, wanted[counts], reduction="none")
        can_draft = each.isfinite()
        loss = (each * weight)[can_draft].sum() / weight[can_draft].sum()
        is_right = torch.zeros_like(counts)
        is_right[counts] = logits.argmax(-1) == wanted[counts]
        right = is_right.int().cumprod(-1).sum(-1)[counts.any(-1)].float().mean()
        return loss, {"loss": loss.item(), "right drafts": right.item()}


def start_as(layer: Block, known: Block) -> None:
    """Give a layer the weights of another.

    Of a matrix that is larger there, it gets the first rows and columns. Where it has more columns itself,
    the first ones, which read an embedding, stay as they are.
    """
    own = layer.state_dict()
    for name, weight in known.state_dict().items():
        rows, *columns = (min(pair) for pair in zip(own[name].shape, weight.shape, strict=True))
        if columns:
            own[name][:rows, -columns[0] :] = weight[:rows, : columns[0]]
        else:
            own[name][:rows] = weight[:rows]


def samples(rng: random.Random) -> Iterator[Sample]:
    """Yield samples without end: a share of the demo model's own mix, the rest of all families alike."""
    tokenizer, source = Tokenizer.from_file(str(BUNDLED / "tokenizer.json")), Source(rng)
    mix, makers = conversations(source), [make for name, (make, _) in FAMILIES.items() if name != LONG_FAMILY]
    while True:
        talk = next(mix) if rng.random() < SHARE_OF_MIX else rng.choice(makers)(source)
        sample = encode(tokenizer, render(talk))
        if len(sample[0]) <= MOST_TOKENS:
            yield sample
