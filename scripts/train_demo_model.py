"""Train the demo model on generated text, or resume its training; evaluate it; write it to demo_model/.

    python scripts/train_demo_model.py --minutes 100 --processes 2      # train (or resume) and export
    python scripts/train_demo_model.py --evaluate                       # exact match on held-out samples
    python scripts/train_demo_model.py --size draft --minutes 15        # smaller model, same vocabulary
    python scripts/train_demo_model.py --size polish --minutes 20       # smaller model, other vocabulary
    python scripts/train_demo_model.py --size wedlm --minutes 30        # predicts masks too (demo_wedlm.py)
    python scripts/train_demo_model.py --size states --count 3840       # what the next two learn from
    python scripts/train_demo_model.py --size mtp --minutes 13          # head that drafts (demo_heads.py)
    python scripts/train_demo_model.py --size dflash --minutes 16       # drafter of blocks (demo_heads.py)

Needs torch, tokenizers, numpy and safetensors (the `train` extra); the server needs none of this.
"""

import argparse
import json
import os
import random
import shutil
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from demo_corpus import FAMILIES, Source, conversations, held_out
from demo_corpus.lexicon import ADJECTIVES, FIELDS, IDENTIFIER_WORDS, NAMES
from demo_corpus.polish import POLISH_ADJECTIVES, POLISH_NAMES, POLISH_NOUNS, in_polish
from demo_corpus.rendering import SPECIAL_TOKENS, TURN_END, render
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
CONFIG = {
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
# The model in demo_model/draft is smaller in these.
DRAFT_CONFIG = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
}
# The model in demo_model/draft_polish has another vocabulary. Half of its training text has diacritics.
POLISH_CONFIG = DRAFT_CONFIG | {"vocab_size": 3072}
# Sizes that train no model but what drafts from its states.
HEADS = ("states", "mtp", "dflash")
# Words include a leading space, numbers are split into pairs of digits, line breaks include the indentation.
SPLIT = r" ?\p{L}+| ?\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# For the Polish vocabulary: single digits; line breaks include the indentation, signs a leading space.
POLISH_SPLIT = r"\n *|\p{N}| ?[^\s\p{L}\p{N}]+| ?\p{L}+|\s"
BATCH_TOKENS = 2048
PEAK_RATE = 2.4e-3
EMBEDDING_RATE = 1.2e-3
HINTS_RATE = 2e-3


def train_tokenizer() -> Tokenizer:
    """Train a byte-level BPE on generated text. Extra text makes most words of the corpus single tokens."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    words = sorted({*IDENTIFIER_WORDS, *ADJECTIVES, *FIELDS, *NAMES})
    text = ["".join(p for p, _ in render(c)) for c in islice(conversations(Source(random.Random(0))), 3000)]
    text += ["\n".join((word, " " + word)) for word in words] * 30
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    single = sum(len(tokenizer.encode(form).ids) == 1 for w in words for form in (w, " " + w))
    print(f"tokenizer: {tokenizer.get_vocab_size()} tokens, {single} of {2 * len(words)} words are one token")
    return tokenizer


def train_polish_tokenizer() -> Tokenizer:
    """Train a BPE in SentencePiece's style, of characters with byte fallback. Half of the text is in Polish.

    Spaces become marks. Encoding adds one at the start of the text, and decoding removes it again.
    """
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    split = pre_tokenizers.Split(Regex(POLISH_SPLIT), behavior="isolated")
    spaces = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, spaces])
    parts = [
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    tokenizer.decoder = decoders.Sequence(parts)
    rng = random.Random(0)
    pieces = [render(c) for c in islice(conversations(Source(rng)), 3000)]
    text = ["".join(p for p, _ in (in_polish(one, rng) if at % 2 else one)) for at, one in enumerate(pieces)]
    for words in (POLISH_NOUNS, POLISH_ADJECTIVES, POLISH_NAMES):
        text += ["\n".join((word, " " + word, word.capitalize())) for word in words] * 30
    trainer = trainers.BpeTrainer(
        vocab_size=POLISH_CONFIG["vocab_size"],
        special_tokens=[*SPECIAL_TOKENS, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))],
        initial_alphabet=[chr(code) for code in range(32, 127)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    # The trainer accepts byte tokens only as special tokens, which decoding would skip.
    written = json.loads(tokenizer.to_str())
    written["added_tokens"] = [
        token for token in written["added_tokens"] if token["content"] in SPECIAL_TOKENS
    ]
    return Tokenizer.from_str(json.dumps(written))


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


class Muon(torch.optim.Optimizer):
    """Momentum with updates made orthogonal by Newton-Schulz steps (Jordan et al. 2024).

    The steps use dtype: float32, or bfloat16, as in torch's own Muon, where the CPU does not only emulate it.
    Updates are scaled to the usual size of AdamW's.
    """

    def __init__(
        self,
        matrices: list[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.05,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # noqa: ARG002
        """Update every matrix. Matrices of the same shape are multiplied together in one batch."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = {}
            for p in group["params"]:
                shapes.setdefault(p.shape, []).append(p)
            for shape, parameters in shapes.items():
                updates = []
                for p in parameters:
                    average = self.state[p].setdefault("memory", torch.zeros_like(p))
                    average.lerp_(p.grad, 1 - group["momentum"])
                    updates.append(p.grad.lerp(average, group["momentum"]))
                scale = 0.2 * max(shape) ** 0.5 * group["lr"]
                made = orthogonal(torch.stack(updates).to(self.dtype)).float()
                for p, update in zip(parameters, made, strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=scale)


def orthogonal(x: Tensor) -> Tensor:
    """Move matrices (n, rows, columns) towards the nearest ones with orthogonal rows or columns."""
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x


Sample = tuple[list[int], list[bool]]


def encode(tokenizer: Tokenizer, pieces: list[tuple[str, bool]]) -> Sample:
    """Return the token ids of a rendered conversation, and for each whether it is part of an answer."""
    encoding = tokenizer.encode("".join(text for text, _ in pieces), add_special_tokens=False)
    ends = list(accumulate(len(text) for text, _ in pieces))
    answer = [pieces[bisect_right(ends, start)][1] for start, _ in encoding.offsets]
    return encoding.ids, answer


def repeated(rng: random.Random, period: int, length: int) -> Sample:
    """Make a sample of random tokens that repeat with a period: the fastest way to teach copying."""
    ids = [rng.randrange(len(SPECIAL_TOKENS), CONFIG["vocab_size"]) for _ in range(period)]
    ids = (ids * (length // period + 1))[:length]
    return ids, [at >= period for at in range(length)]


def batches(tokenizer: Tokenizer, rng: random.Random, progress: list[float]) -> Iterator[tuple[Tensor, ...]]:
    """Yield batches (tokens, positions, picked) without end, of about BATCH_TOKENS each and similar lengths.

    progress: a list of one number in [0, 1] that the caller updates; samples get longer as it grows.
    """
    source = Source(rng)
    stream = conversations(source)
    while True:
        p = progress[0]
        source.size = min(1.0, 0.15 + p / 0.7)
        if p < 0.03:
            pool = [repeated(rng, rng.randint(4, 24 if p < 0.015 else 64), 128) for _ in range(128)]
        else:
            rendered = [render(next(stream)) for _ in range(160)]
            if CONFIG["vocab_size"] == POLISH_CONFIG["vocab_size"]:
                rendered = [in_polish(one, rng) if rng.random() < 0.5 else one for one in rendered]
            pool = [encode(tokenizer, one) for one in rendered]
            pool += [repeated(rng, rng.randint(16, 128), 256) for _ in range(3)]
        limit = 700 if p < 0.3 else 1500 if p < 0.7 else 3000
        groups = grouped([s for s in pool if len(s[0]) <= limit], lambda s: len(s[0]), BATCH_TOKENS * 1.1)
        rng.shuffle(groups)
        for group in groups:
            yield collate(group, rng, p)


T = TypeVar("T")


def grouped(pool: list[T], length: Callable[[T], int], most_tokens: float) -> list[list[T]]:
    """Return groups of similar length, shortest first, of at most so many tokens when padded."""
    groups: list[list[T]] = [[]]
    for one in sorted(pool, key=length):
        if groups[-1] and (len(groups[-1]) + 1) * length(one) > most_tokens:
            groups.append([])
        groups[-1].append(one)
    return groups


def descend(module: nn.Module, optimizers: Iterable[tuple[Any, float]], rate: float) -> None:
    """Clip a module's gradients, and let each optimizer take a step at that share of its peak rate."""
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    for optimizer, peak in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = peak * rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def save_whole(state: dict[str, Any], file: Path) -> None:
    """Write a checkpoint; the old file stays until the new one is complete."""
    new = file.with_suffix(".new")
    torch.save(state, new)
    new.replace(file)


def collate(group: list[Sample], rng: random.Random, progress: float) -> tuple[Tensor, ...]:
    """Pad samples on the right and stack them into a batch.

    Later in training, half of the samples have positions that jump ahead at one point, so that the model also
    learns long distances.
    """
    length = max(len(ids) for ids, _ in group)
    tokens = torch.zeros(len(group), length, dtype=torch.long)
    picked = torch.zeros(len(group), length, dtype=torch.bool)
    positions = torch.arange(length).repeat(len(group), 1)
    for row, (ids, answer) in enumerate(group):
        tokens[row, : len(ids)] = torch.tensor(ids)
        picked[row, : len(ids)] = torch.tensor(answer)
        if progress > 0.1 and rng.random() < 0.5:
            positions[row] += rng.randrange(2000)
            positions[row, rng.randrange(length) :] += rng.randrange(rng.choice((200, 1000, 4000)))
    return tokens, positions, picked


def targets(tokens: Tensor, picked: Tensor) -> tuple[Tensor, Tensor]:
    """Return (mask of the positions whose next token is part of an answer, those next tokens)."""
    before = torch.zeros_like(picked)
    before[:, :-1] = picked[:, 1:]
    return before, tokens[picked]


class Hints(nn.Module):
    """Auxiliary training losses on middle layers, which teach the model to find whole sentences.

    To quote the sentence that mentions a thing, a model must go from the thing to the start of its sentence
    and copy from there. Hours of training on answers alone did not teach that. So at every token, the third
    layer must predict the first token of the token's line or sentence. At a word that occurred before, the
    fourth layer must predict the first token of the line or sentence where the word first occurred. Each
    layer has its own matrix that reads the prediction from its state.
    """

    NUM_SAMPLED = 400
    WEIGHTS = (0.2, 0.4)

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        d = CONFIG["hidden_size"]
        self.matrices = nn.ParameterList(torch.linalg.qr(torch.randn(d, d))[0] for _ in self.WEIGHTS)
        ids = [[token] for token in range(CONFIG["vocab_size"])]
        texts = tokenizer.decode_batch(ids, skip_special_tokens=False)
        ends = [text.endswith(".") or "\n" in text or text in SPECIAL_TOKENS for text in texts]
        words = [len(text.strip()) > 3 and text.strip().isalpha() for text in texts]
        self.register_buffer("ends", torch.tensor(ends), persistent=False)
        self.register_buffer("words", torch.tensor(words), persistent=False)

    def loss(self, states: list[Tensor], tokens: Tensor, embedding: Tensor) -> Tensor:
        """Return the auxiliary loss of the third and fourth layers at a random sample of positions."""
        starts = line_starts(tokens, self.ends)
        everywhere = torch.ones_like(tokens, dtype=torch.bool).nonzero(as_tuple=True)
        total = torch.zeros(())
        if len(states) < 4:
            return total
        hinted = ((2, *everywhere, starts[everywhere]), (3, *recalled(tokens, starts, self.words)))
        for (layer, row, at, wanted), matrix, weight in zip(hinted, self.matrices, self.WEIGHTS, strict=True):
            some = torch.randperm(len(row))[: self.NUM_SAMPLED]
            if len(some):
                state = F.rms_norm(states[layer][row[some], at[some]], (CONFIG["hidden_size"],))
                total = total + weight * F.cross_entropy(state @ matrix @ embedding.T, wanted[some])
        return total


def line_starts(tokens: Tensor, ends: Tensor) -> Tensor:
    """Return (batch, length): for each token, the first token of its line or sentence.

    ends: (vocabulary,) bool, the tokens that end a line or sentence.
    """
    is_start = torch.ones_like(tokens, dtype=torch.bool)
    is_start[:, 1:] = ends[tokens[:, :-1]]
    at = torch.arange(tokens.shape[1]).expand_as(tokens)
    return tokens.gather(1, torch.where(is_start, at, 0).cummax(1).values)


def recalled(tokens: Tensor, starts: Tensor, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find words that occurred before in their row.

    Returns their rows, their columns, and the first token of the line or sentence where each first occurred.
    """
    length = tokens.shape[1]
    is_same = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)
    first = torch.where(is_same, torch.arange(length), length).amin(2)
    row, at = ((first < length) & words[tokens]).nonzero(as_tuple=True)
    return row, at, starts[row, first[row, at]]


class Training:
    """The state of a training run in one process: model, optimizers and progress.

    seconds: training time so far, including earlier runs. step: number of updates so far.
    """

    def __init__(self, arguments: argparse.Namespace, rank: int, tokenizer: Tokenizer) -> None:
        self.arguments, self.rank = arguments, rank
        self.checkpoint: Path = arguments.work / "checkpoint.pt"
        self.model = Model()
        matrices = [p for p in self.model.layers.parameters() if p.ndim == 2]
        others = [p for p in self.model.parameters() if not any(p is m for m in matrices)]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(others, lr=EMBEDDING_RATE, betas=(0.9, 0.98), weight_decay=0.0),
            Muon(matrices, lr=PEAK_RATE),
        ]
        self.hints = Hints(tokenizer)
        self.hints_optimizer = torch.optim.AdamW(self.hints.parameters(), lr=HINTS_RATE, weight_decay=0.0)
        self.seconds, self.step = 0.0, 0
        if self.checkpoint.exists():
            state = torch.load(self.checkpoint, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.hints.load_state_dict(state["hints"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.seconds, self.step = state["seconds"], state["step"]
        elif arguments.start_from:
            load_weights(self.model, arguments.start_from)
            self.seconds = arguments.start_at * 60

    @property
    def progress(self) -> float:
        """The share of the training time that has passed: 0 at the start, 1 at the end."""
        return min(1.0, self.seconds / 60 / self.arguments.minutes)

    @property
    def rate(self) -> float:
        """The learning rate relative to its peak: a short warm-up, then a linear decay to 1 %."""
        return min(1.0, (self.step + 1) / 100) * max(0.01, 1.0 - self.progress)

    def spend(self, seconds: float) -> None:
        """Add the time of a step. All processes must agree, or one would stop while another waits for it."""
        # If the process was paused, for example for a measurement, the pause does not count as training.
        clock = torch.tensor([self.seconds + min(seconds, 15.0)], dtype=torch.float64)
        if self.arguments.processes > 1:
            dist.broadcast(clock, 0)
        self.seconds = clock.item()

    def update(self, tokens: Tensor, positions: Tensor, picked: Tensor) -> tuple[float, float]:
        """Train on one batch. Return its loss and the share of answer tokens that were right."""
        before, wanted = targets(tokens, picked)
        states = self.model.states(tokens, positions)
        logits = self.model.read(states[-1][before])
        loss = F.cross_entropy(logits, wanted)
        (loss + self.hints.loss(states, tokens, self.model.embed_tokens.weight)).backward()
        if self.arguments.processes > 1:
            self._average_gradients()
        peaks = zip(self.optimizers, (EMBEDDING_RATE, PEAK_RATE), strict=True)
        descend(self.model, peaks, self.rate)
        self.hints_optimizer.step()
        self.hints_optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item(), (logits.argmax(-1) == wanted).float().mean().item()

    def save(self) -> None:
        """Write the checkpoint atomically: the old one stays until the new one is complete."""
        state = {"model": self.model.state_dict(), "hints": self.hints.state_dict()}
        state["optimizers"] = [o.state_dict() for o in self.optimizers]
        save_whole({**state, "seconds": self.seconds, "step": self.step}, self.checkpoint)

    def _average_gradients(self) -> None:
        parameters = [*self.model.parameters(), *self.hints.parameters()]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat)
        flat /= self.arguments.processes
        for p, grad in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            p.grad = grad.view_as(p)


def train(arguments: argparse.Namespace, rank: int) -> None:
    """Train on this process's share of the data until the time is up. Rank 0 saves and prints."""
    choose_size(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    if arguments.processes > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(arguments.port)}
        dist.init_process_group("gloo", rank=rank, world_size=arguments.processes)
    tokenizer = Tokenizer.from_file(str(arguments.work / "tokenizer.json"))
    training = Training(arguments, rank, tokenizer)
    progress = [training.progress]
    stream = batches(tokenizer, random.Random(f"{arguments.seed} {rank} {training.step}"), progress)
    seen: list[tuple[float, float]] = []
    last = time.monotonic()
    while training.progress < 1.0:
        seen.append(training.update(*next(stream)))
        now = time.monotonic()
        training.spend(now - last)
        last, progress[0] = now, training.progress
        if rank == 0 and training.step % 50 == 0:
            loss, right = (sum(column) / len(seen) for column in zip(*seen, strict=True))
            minute = training.seconds / 60
            print(
                f"minute {minute:.1f}, step {training.step}: loss {loss:.3f}, right tokens {right:.4f}",
                flush=True,
            )
            seen = []
        if rank == 0 and training.step % 200 == 0:
            training.save()
    if rank == 0:
        training.save()
    if arguments.processes > 1:
        dist.destroy_process_group()


def choose_size(arguments: argparse.Namespace) -> None:
    """Set CONFIG to the chosen size. Every process has its own CONFIG."""
    CONFIG.update({"demo": {}, "draft": DRAFT_CONFIG, "polish": POLISH_CONFIG}[arguments.size])


def load_weights(model: Model, folder: Path) -> None:
    """Load an exported folder's weights. Layers that it lacks are initialized to change nothing."""
    weights = load_file(folder / "model.safetensors")
    state = {name.removeprefix("model."): value.float() for name, value in weights.items()}
    model.load_state_dict(state, strict=False)
    for at, layer in enumerate(model.layers):
        if f"layers.{at}.self_attn.q_proj.weight" not in state:
            nn.init.zeros_(layer.self_attn["o_proj"].weight)
            nn.init.zeros_(layer.mlp["down_proj"].weight)


def export(work: Path, out: Path) -> None:
    """Write the checkpoint as a model folder that mlx-lm loads."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    weights = torch.load(work / "checkpoint.pt", weights_only=True)["model"]
    save_file(
        {f"model.{name}": value.bfloat16().contiguous() for name, value in weights.items()},
        out / "model.safetensors",
        metadata={"format": "pt"},
    )
    end = tokenizer.token_to_id(TURN_END)
    _write(out / "config.json", CONFIG | {"eos_token_id": end, "bos_token_id": None})
    tokenizer.save(str(out / "tokenizer.json"))
    if out != ROOT / "demo_model":
        shutil.copy(ROOT / "demo_model" / "chat_template.jinja", out)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": TURN_END,
        "pad_token": SPECIAL_TOKENS[0],
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONFIG["max_position_embeddings"],
    }
    _write(out / "tokenizer_config.json", settings)


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def evaluate(folder: Path, count: int, seed: int) -> dict[str, float]:
    """Measure and print exact match on count new held-out samples of every family.

    A sample counts if the greedy choice is right at every position of every answer in it. That is the same as
    generating all answers greedily and getting them exactly right.
    """
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = Model()
    load_weights(model, folder)
    rates = {}
    for family in FAMILIES:
        right, num_tokens = 0, 0
        for conversation in held_out(family, count, seed):
            tokens, positions, picked = collate(
                [encode(tokenizer, render(conversation))], random.Random(0), 0.0
            )
            before, wanted = targets(tokens, picked)
            with torch.no_grad():
                right += bool((model(tokens, positions, before).argmax(-1) == wanted).all())
            num_tokens += tokens.numel()
        rates[family] = right / count
        print(f"| {family} | {100 * rates[family]:.0f} % | {num_tokens // count} |", flush=True)
    return rates


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=100.0, help="training time, including earlier runs")
    parser.add_argument("--processes", type=int, default=2, help="one torch thread each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--port", type=int, default=29511, help="port that connects the processes, loopback only"
    )
    parser.add_argument("--size", choices=("demo", "draft", "polish", "wedlm", *HEADS), default="demo")
    parser.add_argument(
        "--work",
        type=Path,
        help="tokenizer, states and checkpoint; default .training/SIZE, for heads .training/heads",
    )
    parser.add_argument(
        "--start-from", type=Path, help="exported model to continue from, without a checkpoint"
    )
    parser.add_argument("--start-at", type=float, default=60.0, help="minute of the schedule to continue at")
    parser.add_argument("--out", type=Path, help="default demo_model, or the folder of the size in it")
    parser.add_argument("--evaluate", action="store_true", help="measure --out instead of training")
    parser.add_argument("--export", action="store_true", help="write the checkpoint to --out, no training")
    parser.add_argument(
        "--count", type=int, default=200, help="held-out samples per family; of states, samples in all"
    )
    arguments = parser.parse_args()
    demo = ROOT / "demo_model"
    work = "heads" if arguments.size in HEADS else arguments.size
    arguments.work = arguments.work or ROOT / ".training" / work
    folders = {"demo": "", "polish": "draft_polish"}
    arguments.out = arguments.out or demo / folders.get(arguments.size, arguments.size)
    if arguments.size in HEADS:
        import_module("demo_heads").run(arguments)
        return
    if arguments.size == "wedlm":
        import_module("demo_wedlm").run(arguments)
        return
    choose_size(arguments)
    if arguments.evaluate:
        print("| family | exact match | tokens per sample |\n|---|---|---|")
        evaluate(arguments.out, arguments.count, seed=2_000_000)
        return
    if not arguments.export:
        arguments.work.mkdir(parents=True, exist_ok=True)
        if not (arguments.work / "tokenizer.json").exists():
            if arguments.size == "polish":
                train_polish_tokenizer().save(str(arguments.work / "tokenizer.json"))
            elif arguments.start_from or arguments.size == "draft":
                shutil.copy((arguments.start_from or demo) / "tokenizer.json", arguments.work)
            else:
                train_tokenizer().save(str(arguments.work / "tokenizer.json"))
        context = torch.multiprocessing.get_context("spawn")
        others = [context.Process(target=train, args=(arguments, r)) for r in range(1, arguments.processes)]
        for process in others:
            process.start()
        train(arguments, 0)
        for process in others:
            process.join()
    export(arguments.work, arguments.out)


if __name__ == "__main__":
    main()
