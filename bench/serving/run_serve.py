"""`reprise bench serve`: load a server with chats and report latency and throughput.

Send chats of equal length to servers, many at once. Answers cannot end early (logit_bias forbids the end
tokens), so all have the requested length. Prompts are random words, and no prompt is sent twice; their seed
is a new one, which is printed, because a running server may have those of an earlier --seed in its prefix
cache. Exit status 1 if any request failed.
"""

import argparse
import random
import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path

from bench import document, options, outputs, tables
from bench.architectures.tiny_models import write_random_model
from bench.errors import ArgumentsError, BenchError
from bench.experiment import Row
from bench.options import Flag
from bench.serving import servers, traffic
from bench.serving.bare_loop import start_loop
from bench.serving.traffic import Batch
from bench.workloads.chats import Turn, render, user
from bench.workloads.words import ADJECTIVES, NOUNS, VERBS
from engine.model.loading import load_tokenizer
from engine.text.tokenizer import Tokenizer

_WIDTH = 150
BARE = "bare loop"

FLAGS = (
    *servers.FLAGS,
    Flag("--bare", None, None, None,
         "Also run mlx_lm.stream_generate on the prompts of one stream, and compare."),
    Flag("--concurrency", options.levels, "N,...", (1, 2, 4, 8), "Concurrent streams."),
    Flag("--prompt-tokens", options.count, "N", 256, "Tokens of each prompt, with the chat template."),
    Flag("--random-models", options.names, "A,B", (),
         "Serve random models of these architectures instead, of 4 to 6 million parameters."),
    Flag("--repetitive", None, None, None,
         "Make the random models such that each answer soon repeats itself, as drafts need."),
    *options.of_settings("draft_type", *options.MACHINES),
    *options.shared(max_tokens=128, rounds=3, seed=None, **options.OUTPUTS),
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure and report. Return 1 if a request or a server failed, 2 if the arguments cannot be combined."""
    if arguments.bare and 1 not in arguments.concurrency:
        raise ArgumentsError("--bare is compared at one stream; add 1 to --concurrency")
    if arguments.repetitive and not arguments.random_models:
        raise ArgumentsError("--repetitive makes random models; name them with --random-models")
    servers.check(arguments, [BARE] if arguments.bare else [])
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    result = document.new_document(arguments)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, model in _models(arguments, Path(folder)):
            rows += [{"model": name, **row} for row in _measured(arguments, model, seed)]
    levels, remarks = traffic.figures_of(rows, "model", "streams"), traffic.remarks(rows)
    settings = {"model": arguments.model.resolve().name, "seed": seed}
    result["serve"] = {"settings": settings, "levels": levels, "notes": remarks, "rows": rows}
    console, notes = outputs.make_console(_WIDTH), [*traffic.NOTES, *remarks]
    tables.print_rows(console, levels, traffic.COLUMNS, f"Prompts of seed {seed}", notes, "streams")
    outputs.finish(console, arguments, result, rows)
    return int(any(row["error"] for row in rows))


def _models(arguments: argparse.Namespace, folder: Path) -> Iterator[tuple[str | None, Path]]:
    """Yield the models to serve, random ones with their names. folder: for those."""
    if not arguments.random_models:
        yield None, arguments.model
    for name in arguments.random_models:
        try:
            yield name, write_random_model(name, folder / name, arguments.repetitive)
        except ImportError:
            raise ArgumentsError(f"--random-models: mlx-lm has no architecture {name}") from None


def _measured(arguments: argparse.Namespace, model: Path, seed: int) -> list[Row]:
    """Ask all servers of one model. Every round has new prompts, the same ones for all servers."""
    tokenizer = load_tokenizer(model)
    prompts = random_turns(tokenizer, arguments.prompt_tokens, seed)
    own = options.flags(arguments, "draft_type", *options.MACHINES)
    rows: list[Row] = []
    with ExitStack() as children:
        peers = servers.connect(arguments, model, children, own, sorted(tokenizer.eos_ids))
        start = partial(start_loop, children, tokenizer, arguments.max_tokens, str(model), False)
        loops = {BARE: start()} if arguments.bare else {}
        for level in arguments.concurrency:
            size = max(4, 2 * level)
            batches = [Batch(at, "", [*islice(prompts, size)]) for at in range(arguments.rounds + 1)]
            rows += traffic.ask_all(peers | loops if level == 1 else peers, batches, level)
    return rows


def random_turns(tokenizer: Tokenizer, num_tokens: int, seed: int) -> Iterator[Turn]:
    """Yield prompts of random words, the same ones for the same seed.

    num_tokens: of the whole prompt with the chat template; where words have several, it may be a few less.
    Each begins with a number of its own, so that a prefix cache can reuse nothing but the chat template.
    Raises BenchError if the chat template leaves no room for words.
    """
    rng = random.Random(seed)
    for number in rng.sample(range(100_000, 1_000_000), 100_000):
        # No word is shorter than a token.
        words = [str(number), *rng.choices([*NOUNS, *ADJECTIVES, *VERBS], k=num_tokens)[1:]]
        counts = range(1, num_tokens + 1)
        fitting = bisect_right(counts, num_tokens, key=lambda n: len(render(tokenizer, " ".join(words[:n]))))
        if not fitting:
            raise BenchError(f"--prompt-tokens {num_tokens} is too short for the chat template")
        yield Turn((user(" ".join(words[:fitting])),), None, is_endless=True)
