"""Train the demo model on generated text, or resume its training; evaluate it; write it to demo_model/.

    python -m demo_model.training.train --minutes 100 --processes 2      # train (or resume) and export
    python -m demo_model.training.train --evaluate                       # exact match on held-out samples
    python -m demo_model.training.train --size draft --minutes 15        # smaller model, same vocabulary
    python -m demo_model.training.train --size polish --minutes 20       # smaller model, other vocabulary
    python -m demo_model.training.train --size wedlm --minutes 30        # predicts masks too (wedlm.py)
    python -m demo_model.training.train --size states --count 3840       # what the next two learn from
    python -m demo_model.training.train --size mtp --minutes 13          # head that drafts (hidden_states/)
    python -m demo_model.training.train --size dflash --minutes 16       # drafter of blocks (hidden_states/)

Needs torch, tokenizers, numpy and safetensors (the `train` extra); the server needs none of this.
"""

import argparse
import json
import os
import random
import shutil
import time
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from reprise.demo_model.training.corpus import FAMILIES, held_out
from reprise.demo_model.training.corpus.rendering import SPECIAL_TOKENS, TURN_END, render
from reprise.demo_model.training.hints import Hints
from reprise.demo_model.training.llama import Model, load_weights, save_whole
from reprise.demo_model.training.muon import Muon, descend
from reprise.demo_model.training.samples import batches, collate, encode, targets
from reprise.demo_model.training.sizes import CONFIG, HEADS, ROOT, choose_size
from reprise.demo_model.training.vocabulary import train_polish_tokenizer, train_tokenizer

PEAK_RATE = 2.4e-3
EMBEDDING_RATE = 1.2e-3
HINTS_RATE = 2e-3


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
        import_module("demo_model.training.hidden_states.head_training").run(arguments)
        return
    if arguments.size == "wedlm":
        import_module("demo_model.training.wedlm").run(arguments)
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
