"""Train a model of demo_model/ on generated text, or resume its training, and export it; or evaluate it.

    python -m reprise.demo_model.training.train --minutes 100                  # the demo model
    python -m reprise.demo_model.training.train --size draft --minutes 15      # smaller, same vocabulary
    python -m reprise.demo_model.training.train --size polish --minutes 20     # smaller, other vocabulary
    python -m reprise.demo_model.training.train --size wedlm --minutes 30      # predicts masks too
    python -m reprise.demo_model.training.train --size mtp --minutes 13        # head that drafts
    python -m reprise.demo_model.training.train --size eagle3 --minutes 22     # head of several layers
    python -m reprise.demo_model.training.train --size dflash --minutes 16     # drafter of blocks
    python -m reprise.demo_model.training.train --size SIZE --evaluate         # on held-out samples

Needs torch, tokenizers, numpy and safetensors (the `train` extra); the server needs none of this.
Torch uses all cores; OMP_NUM_THREADS=1 in the environment leaves it one.
"""

import argparse
import json
import random
import shutil
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn

from reprise.demo_model.training import demo, heads, wedlm
from reprise.demo_model.training.corpus.rendering import SPECIAL_TOKENS, TURN_END
from reprise.demo_model.training.data import train_polish_tokenizer, train_tokenizer
from reprise.demo_model.training.model import BUNDLED, ROOT, load_weights

Kind = demo.Demo | wedlm.Wedlm | heads.Head

FOLDERS = {
    "demo": BUNDLED,
    "draft": BUNDLED / "draft",
    "polish": BUNDLED / "draft_polish",
    "wedlm": BUNDLED / "wedlm",
    "mtp": BUNDLED / "mtp",
    "eagle3": BUNDLED / "eagle3",
    "dflash": BUNDLED / "dflash",
}
EVALUATION_SEED = 2_000_000
# A step's time counts up to this many seconds: if the process was paused, the pause is no training.
MOST_SECONDS = 15.0
WARM_UP_STEPS, REPORT_STEPS, SAVE_STEPS = 100, 50, 200


class Training:
    """A training run: what learns, the seconds that it took (earlier runs too) and its number of updates."""

    def __init__(self, size: str, work: Path, minutes: float, start_from: Path | None = None) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.kind = make_kind(size, work, start_from)
        self.checkpoint, self.minutes = work / "checkpoint.pt", minutes
        self.seconds, self.step = 0.0, 0
        if self.checkpoint.exists():
            state = torch.load(self.checkpoint, weights_only=True)
            self.kind.learned.load_state_dict(state["learned"])
            for optimizer, saved in zip(self.kind.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.seconds, self.step = state["seconds"], state["step"]
        elif start_from:
            load_weights(self.kind.model, start_from)
        for optimizer in self.kind.optimizers:
            for group in optimizer.param_groups:
                group.setdefault("initial_lr", group["lr"])
        torch.manual_seed(self.step)
        random.seed(self.step)
        self.batches = self.kind.batches(random.Random(self.step), lambda: self.progress)

    @property
    def progress(self) -> float:
        """The share of the training time that has passed: 0 at the start, 1 at the end."""
        return min(1.0, self.seconds / 60 / self.minutes)

    def update(self) -> dict[str, float]:
        """Train on one batch. Return what to report of it."""
        start = time.monotonic()
        loss, seen = self.kind.loss(next(self.batches), self.progress)
        loss.backward()
        nn.utils.clip_grad_norm_(self.kind.learned.parameters(), 1.0)
        # The learning rate relative to its peak: a short warm-up, then a linear decay to 1 %.
        rate = min(1.0, (self.step + 1) / WARM_UP_STEPS) * max(0.01, 1.0 - self.progress)
        for optimizer in self.kind.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.seconds += min(time.monotonic() - start, MOST_SECONDS)
        return seen

    def run(self) -> None:
        """Train until the time is up. Print progress, and save often."""
        reported: list[dict[str, float]] = []
        while self.progress < 1.0:
            reported.append(self.update())
            if self.step % REPORT_STEPS == 0:
                means = {name: sum(one[name] for one in reported) / len(reported) for name in reported[0]}
                figures = ", ".join(f"{name} {mean:.4f}" for name, mean in means.items())
                print(f"minute {self.seconds / 60:.1f}, step {self.step}: {figures}", flush=True)
                reported.clear()
            if self.step % SAVE_STEPS == 0:
                self.save()
        self.save()

    def save(self) -> None:
        """Write the checkpoint; the old one stays until the new one is complete."""
        state = {"learned": self.kind.learned.state_dict(), "seconds": self.seconds, "step": self.step}
        state["optimizers"] = [optimizer.state_dict() for optimizer in self.kind.optimizers]
        new = self.checkpoint.with_suffix(".new")
        torch.save(state, new)
        new.replace(self.checkpoint)


def make_kind(size: str, work: Path, start_from: Path | None) -> Kind:
    """Return what is trained. A demo model's tokenizer is trained, or copied, into the work folder."""
    if size == "wedlm":
        return wedlm.Wedlm()
    if size in heads.KINDS:
        return heads.Head(size)
    file = work / "tokenizer.json"
    if not file.exists():
        if start_from or size == "draft":
            shutil.copy((start_from or BUNDLED) / file.name, file)
        else:
            make = train_polish_tokenizer if size == "polish" else train_tokenizer
            make(demo.CONFIGS[size]["vocab_size"]).save(str(file))
    return demo.Demo(size, Tokenizer.from_file(str(file)))


def export(kind: Kind, out: Path) -> None:
    """Write what was trained as a folder that mlx-lm, or for a head the server, loads."""
    out.mkdir(parents=True, exist_ok=True)
    weights = kind.model.state_dict()
    weights = {
        kind.prefix + name: (value.bfloat16() if value.is_floating_point() else value).contiguous()
        for name, value in weights.items()
    }
    save_file(weights, out / "model.safetensors", metadata={"format": kind.written_by})
    config = kind.config
    if kind.tokenizer:
        config = config | {"eos_token_id": kind.tokenizer.token_to_id(TURN_END), "bos_token_id": None}
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": TURN_END,
            "pad_token": SPECIAL_TOKENS[0],
            "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"],
        }
        write_json(out / "tokenizer_config.json", settings)
        kind.tokenizer.save(str(out / "tokenizer.json"))
        if out != BUNDLED:
            shutil.copy(BUNDLED / "chat_template.jinja", out)
    write_json(out / "config.json", config)


def write_json(path: Path, value: object) -> None:
    """Write indented JSON."""
    path.write_text(json.dumps(value, indent=2) + "\n")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=FOLDERS, default="demo")
    parser.add_argument("--minutes", type=float, default=100.0, help="training time, including earlier runs")
    parser.add_argument("--work", type=Path, help="tokenizer and checkpoint; default .training/SIZE")
    parser.add_argument(
        "--start-from", type=Path, help="exported folder to continue from, without a checkpoint"
    )
    parser.add_argument("--start-at", type=float, default=60.0, help="minute of the schedule to continue at")
    parser.add_argument("--out", type=Path, help="default demo_model, or the folder of the size in it")
    parser.add_argument(
        "--evaluate", action="store_true", help="count exact answers of --out and train nothing"
    )
    parser.add_argument("--count", type=int, default=200, help="held-out samples of each family")
    arguments = parser.parse_args()
    size, out = arguments.size, arguments.out or FOLDERS[arguments.size]
    if not arguments.evaluate:
        work = arguments.work or ROOT / ".training" / size
        training = Training(size, work, arguments.minutes, arguments.start_from)
        if arguments.start_from and not training.step:
            training.seconds = arguments.start_at * 60
        training.run()
        export(training.kind, out)
    elif size in heads.KINDS:
        parser.error(f"reprise bench decode --draft-model demo_model/{size} shows what its drafts gain")
    else:
        config = wedlm.CONFIG if size == "wedlm" else demo.CONFIGS[size]
        demo.evaluate(config, out, arguments.count, EVALUATION_SEED)


if __name__ == "__main__":
    main()
