"""`reprise bench serve`: ask servers, and mlx_lm's own loops, the same chats, and compare.

Stream chats greedily, many at once: of random words, --workloads or --prompts. Each batch goes to all peers
before the next batch, a different peer first each time. Every round has new chats, so that no prefix cache
has them. Answers to random words cannot end early (logit_bias forbids the end tokens), so all have the
requested length. Their seed is new and printed, because a running server may have the chats of an earlier
--seed in its prefix cache. mlx_lm's loops get token ids without HTTP, one chat at a time, and have no cache
between requests. Ratios are to the first peer. Exit status 1 if any request failed.
"""

import argparse
import random
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path

from reprise.bench import document, options
from reprise.bench.experiment import ArgumentsError, BenchError, Row, grouped
from reprise.bench.options import Flag
from reprise.bench.serving import servers, traffic
from reprise.bench.serving.bare_loop import start_loop
from reprise.bench.serving.client import Server
from reprise.bench.serving.servers import DRAFTING_LOOP, LOOP, LOOPS
from reprise.bench.serving.traffic import Ask, Batch
from reprise.bench.tiny_models import write_random_model
from reprise.bench.workloads import VERSION, Chat, Turn, lengths_of, make_chats, own_chats
from reprise.bench.workloads.chats import render, user
from reprise.bench.workloads.generated import ADJECTIVES, NOUNS, VERBS
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.model.loading import load_tokenizer
from reprise.engine.text.tokenizer import Tokenizer

_WIDTH = 150
MIXED = "mixed"

FLAGS = (
    *servers.FLAGS,
    *options.shared(model=None),
    Flag("--draft-model", options.model, "MODEL", None,
         "Draft model for mlx_lm, and for a Reprise started here."),
    Flag("--concurrency", options.levels, "N,...", None,
         "Concurrent streams. Default: 1,2,4,8; with --workloads or --prompts 1."),
    Flag("--prompt-tokens", options.count, "N", None,
         "Tokens of each prompt, with the chat template. Default: 256, or the shortest that a workload has."),
    Flag("--chats", options.count, "N", None,
         "Chats of each workload in each round. Default: as many as streams, at least 3; twice as many of "
         "random words, at least 4."),
    Flag("--mixed", None, None, None, "Ask questions of all workloads together, as one workload."),
    Flag("--by-turn", None, None, None, "Show the turns of chats apart, and what the prefix cache had."),
    Flag("--random-models", options.names, "A,B", (),
         "Serve random models of these architectures instead, of 4 to 6 million parameters."),
    Flag("--repetitive", None, None, None,
         "Make the random models such that each answer soon repeats itself, as drafts need."),
    *options.of_settings("draft_type", *options.MACHINES),
    *options.shared(
        workloads=(), prompts=None, max_tokens=128, rounds=3, seed=None, resume=None, **options.OUTPUTS
    ),
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure and report. Return 1 if a request or a server failed, 2 if the arguments cannot be combined."""
    arguments.concurrency = arguments.concurrency or ((1, 2, 4, 8) if _has_words(arguments) else (1,))
    _check(arguments)
    own = own_chats(arguments.prompts, arguments.workloads)
    if arguments.seed is None:
        # A comparison that is resumed needs the same questions again.
        is_new = _has_words(arguments) and not arguments.resume
        arguments.seed = random.SystemRandom().randrange(2**32) if is_new else 1
    result = document.new_document(arguments)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, model in _models(arguments, Path(folder)):
            rows += [{"model": name, **row} for row in _measured(arguments, model, own, result["command"])]
    fields = ("model", "workload", "streams", *(["turn"] if arguments.by_turn else []))
    levels, remarks = traffic.figures_of(rows, *fields), traffic.remarks(rows)
    settings = {
        "model": (arguments.model or BUNDLED_MODEL).resolve().name, "seed": arguments.seed,
        "workloads_version": VERSION,
    }  # fmt: skip
    result["serve"] = {"settings": settings, "levels": levels, "notes": remarks, "rows": rows}
    console, notes = document.make_console(_WIDTH), [*traffic.NOTES, *remarks]
    document.print_rows(console, levels, traffic.COLUMNS, f"Chats of seed {arguments.seed}", "streams")
    document.report(arguments, result, rows, notes, console)
    return int(any(row["error"] for row in rows))


def _check(arguments: argparse.Namespace) -> None:
    """Raise ArgumentsError for arguments that cannot be combined."""
    servers.check(arguments)
    loops = [name for name, _, _ in arguments.server if name in LOOPS]
    if loops and 1 not in arguments.concurrency:
        raise ArgumentsError(f"{loops[0]} is compared at one stream; add 1 to --concurrency")
    if arguments.prompts and len(arguments.concurrency) > 1:
        raise ArgumentsError("--prompts are asked once, so of --concurrency only one number can be measured")
    if arguments.repetitive and not arguments.random_models:
        raise ArgumentsError("--repetitive makes random models; name them with --random-models")


def _has_words(arguments: argparse.Namespace) -> bool:
    """Whether prompts are random words."""
    return not (arguments.workloads or arguments.prompts)


def _models(arguments: argparse.Namespace, folder: Path) -> Iterator[tuple[str | None, Path]]:
    """Yield the models to serve, random ones with their names. folder: for those."""
    if not arguments.random_models:
        yield None, arguments.model or BUNDLED_MODEL
    for name in arguments.random_models:
        try:
            yield name, write_random_model(name, folder / name, arguments.repetitive)
        except ImportError:
            raise ArgumentsError(f"--random-models: mlx-lm has no architecture {name}") from None


def _measured(
    arguments: argparse.Namespace, model: Path, own: Sequence[Chat] | None, command: str
) -> list[Row]:
    """Ask all peers of one model. Every round has new chats, the same ones for all peers."""
    tokenizer = load_tokenizer(model)
    turns = random_turns(tokenizer, arguments.prompt_tokens or 256, arguments.seed)
    rows: list[Row] = []
    with ExitStack() as children:
        peers = _peers(arguments, model, children, tokenizer)
        for at, level in enumerate(arguments.concurrency):
            if _has_words(arguments):
                size = arguments.chats or max(4, 2 * level)
                batches = [
                    Batch(number, None, [*islice(turns, size)]) for number in range(arguments.rounds + 1)
                ]
            else:
                size = arguments.chats or max(3, level)
                chats = dealt(own, arguments.rounds, size) if own else made(arguments, tokenizer, size, at)
                batches = batches_of(chats, level, arguments.mixed)
            # mlx_lm's loops answer one at a time.
            asked = {name: ask for name, ask in peers.items() if level == 1 or name not in LOOPS}
            if asked:
                resume = {"resume": arguments.resume, "key": command}
                rows += traffic.ask_all(asked, batches, level, f"{model.name}, ", **resume)
    return rows


def _peers(
    arguments: argparse.Namespace, model: Path, children: ExitStack, tokenizer: Tokenizer
) -> dict[str, Ask]:
    """Return all peers by name, after starting those that do not run yet."""
    is_endless, draft = _has_words(arguments), str(arguments.draft_model)
    own = options.flags(arguments, "draft_type", "draft_model", *options.MACHINES)
    flags = {
        servers.OWN: own, servers.PLAIN: ("--draft-type", "none"),
        servers.UNCACHED: (*own, "--prefix-cache-bytes", "0"), servers.DRAFTING: ("--draft-model", draft),
    }  # fmt: skip
    forbidden = sorted(tokenizer.eos_ids) if is_endless else ()
    asks: dict[str, Ask] = {
        name: Server(url, asked, arguments.max_tokens, forbidden, headers=headers).ask
        for name, (url, asked, headers) in servers.addresses(arguments, model, children, flags).items()
    }
    start = partial(start_loop, children, tokenizer, arguments.max_tokens, str(model), not is_endless)
    loops = {LOOP: start, DRAFTING_LOOP: partial(start, draft)}
    names = [name for name, _, _ in arguments.server] or [servers.OWN]
    return {name: loops[name]() if name in loops else asks[name] for name in names}


def dealt(own: Sequence[Chat], rounds: int, size: int) -> list[list[Chat]]:
    """Divide a user's chats into rounds of `size` chats per workload.

    The first list is the warm-up, which has only the first chat. Rounds without chats are left out.
    """
    kinds = grouped([{"kind": one.workload, "chat": one} for one in own[1:] or own], "kind").values()
    by_round = ([one["chat"] for kind in kinds for one in kind[at * size :][:size]] for at in range(rounds))
    return [[*own[:1]], *filter(None, by_round)]


def made(arguments: argparse.Namespace, tokenizer: Tokenizer, size: int, level: int) -> list[list[Chat]]:
    """Generate rounds of `size` chats per workload; the first list is the warm-up.

    level: number of the level of concurrency; each level has other chats.
    """
    num_rounds, length = 1 + arguments.rounds, arguments.prompt_tokens and [arguments.prompt_tokens]
    # Levels differ in their seeds, so that no prefix cache has the chats of one before.
    seed, count = arguments.seed + level, partial(_length, tokenizer)
    chats = [
        make_chats(name, size * num_rounds, seed, count, lengths_of(name, length)[0])
        for name in arguments.workloads
    ]
    return [[chat for alike in chats for chat in alike[at * size :][:size]] for at in range(num_rounds)]


def batches_of(rounds: Sequence[Sequence[Chat]], streams: int, is_mixed: bool = False) -> list[Batch]:
    """Divide each round's turns into batches of `streams` concurrent turns.

    is_mixed: whether a batch may have turns of several workloads, which then count as one.
    Raises ArgumentsError for a turn that is not a greedy chat.
    """
    batches = []
    for number, chats in enumerate(rounds):
        by_workload: dict[str, list[Turn]] = defaultdict(list)
        for chat in chats:
            if any(one.temperature or one.num_allowed or one.is_endless or one.text for one in chat.turns):
                raise ArgumentsError(f"{chat.workload} is not a greedy chat; remove it")
            by_workload[MIXED if is_mixed else chat.workload] += chat.turns
        for workload, turns in by_workload.items():
            if is_mixed:
                random.Random(number).shuffle(turns)
            starts = range(0, len(turns), streams)
            batches += [Batch(number, workload, turns[at : at + streams]) for at in starts]
    return batches


def random_turns(tokenizer: Tokenizer, num_tokens: int, seed: int) -> Iterator[Turn]:
    """Yield prompts of random words, the same ones for the same seed.

    num_tokens: length of the whole prompt with the chat template; a prompt may be a few tokens shorter.
    Each prompt begins with a number of its own: a prefix cache can reuse nothing but the chat template.
    Raises BenchError if the chat template leaves no room for words.
    """
    rng = random.Random(seed)
    for number in rng.sample(range(100_000, 1_000_000), 100_000):
        # No word is shorter than a token.
        words = [str(number), *rng.choices([*NOUNS, *ADJECTIVES, *VERBS], k=num_tokens)[1:]]
        counts = range(1, num_tokens + 1)
        fitting = bisect_right(counts, num_tokens, key=lambda n: _length(tokenizer, " ".join(words[:n])))
        if not fitting:
            raise BenchError(f"--prompt-tokens {num_tokens} is too short for the chat template")
        yield Turn((user(" ".join(words[:fitting])),), None, is_endless=True)


def _length(tokenizer: Tokenizer, text: str) -> int:
    return len(render(tokenizer, text))
