"""`reprise bench peers`: run the same chats on several servers and on mlx_lm's own loops, and compare.

Stream the same chats, greedily, from OpenAI-compatible servers and from mlx_lm's generate (with --draft-model
also from its speculative generate): one at a time, or --streams at once. Each batch goes to all of them
before the next one, a different one first each time. mlx_lm's loops get token ids without HTTP, and have no
cache between requests. Every round has new chats, so that no prefix cache has them.
Ratios are to the first peer. Exit status 1 if anything failed.
"""

import argparse
import random
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from bench import document, options, outputs
from bench.errors import ArgumentsError
from bench.experiment import grouped
from bench.options import Flag
from bench.serving import servers, traffic
from bench.serving.bare_loop import start_loop
from bench.serving.traffic import Ask, Batch
from bench.workloads import VERSION, Chat, Turn, lengths_of, make_chats, own_chats
from bench.workloads.chats import render
from engine.model.loading import load_tokenizer
from engine.text.tokenizer import Tokenizer

LOOP, SPECULATIVE = "mlx_lm generate", "mlx_lm speculative"
MIXED = "mixed"

FLAGS = (
    *options.shared(
        workloads=("edits", "passage", "summary"), prompts=None, prompt_tokens=None, rounds=3, max_tokens=128,
        seed=1, resume=None, **options.OUTPUTS,
    ),
    *servers.FLAGS,
    Flag("--draft-model", options.model_folder, "DIR", None,
         "Draft model for mlx_lm's speculative generate, and for a Reprise started here."),
    Flag("--no-mlx-lm", None, None, None,
         "Leave mlx_lm's loops out; the first server is then what others are compared with."),
    Flag("--chats", options.count, "N", None,
         "Chats of each workload in each round. Default: 3, or as many as streams."),
    Flag("--streams", options.count, "N", 1,
         "Requests at the same time; with several, mlx_lm's loops are left out."),
    Flag("--mixed", None, None, None, "Ask questions of all workloads together, as one workload."),
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure and print. Return 1 if a request failed, 2 if the arguments cannot be combined."""
    servers.check(arguments, (LOOP, SPECULATIVE))
    tokenizer = load_tokenizer(arguments.model)
    batches = batches_of(rounds_of(arguments, tokenizer), arguments.streams, arguments.mixed)
    result = document.new_document(arguments)
    resume = {"resume": arguments.resume, "key": result["command"]}
    with ExitStack() as children:
        peers = _peers(arguments, children, tokenizer)
        rows = traffic.ask_all(peers, batches, arguments.streams, **resume)
    found = traffic.figures_of(rows, "workload", "streams")
    result["peers"] = {"workloads_version": VERSION, "rows": found}
    notes, title = [*traffic.NOTES, *traffic.remarks(rows)], "The same greedy chats on each peer"
    outputs.report(arguments, result, found, outputs.Table(traffic.COLUMNS, title, notes, width=150))
    return int(any(row["error"] for row in found))


def rounds_of(arguments: argparse.Namespace, tokenizer: Tokenizer) -> list[list[Chat]]:
    """Return the chats of each round, the warm-up first."""
    num_rounds = 1 + arguments.rounds
    size = arguments.chats or max(3, arguments.streams)
    if (own := own_chats(arguments.prompts, arguments.workloads)) is not None:
        # The warm-up has the first one. Rounds are left out for which there are no more.
        kinds = grouped([{"kind": one.workload, "chat": one} for one in own[1:] or own], "kind").values()
        dealt = (
            [one for kind in kinds for one in kind[at * size :][:size]] for at in range(arguments.rounds)
        )
        return [own[:1], *([row["chat"] for row in rows] for rows in dealt if rows)]
    made = [
        make_chats(name, size * num_rounds, arguments.seed, lambda text: len(render(tokenizer, text)), length)
        for name in arguments.workloads
        for length in lengths_of(name, arguments.prompt_tokens)[:1]
    ]
    return [[chat for chats in made for chat in chats[at * size :][:size]] for at in range(num_rounds)]


def batches_of(rounds: Sequence[Sequence[Chat]], streams: int, is_mixed: bool = False) -> list[Batch]:
    """Return the turns of each round, the warm-up first, in batches of concurrent ones.

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


def _peers(arguments: argparse.Namespace, children: ExitStack, tokenizer: Tokenizer) -> dict[str, Ask]:
    """Start or connect all peers; mlx_lm's loops come first, because ratios are to the first peer."""
    start = partial(start_loop, children, tokenizer, arguments.max_tokens, str(arguments.model))
    loops: dict[str, Ask] = {}
    if not arguments.no_mlx_lm and arguments.streams == 1:
        loops[LOOP] = start()
        if arguments.draft_model:
            loops[SPECULATIVE] = start(True, str(arguments.draft_model))
    own = options.flags(arguments, "draft_model")
    return loops | servers.connect(arguments, arguments.model, children, own)
