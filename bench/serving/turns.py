"""`reprise bench turns`: measure the time to the first token in each turn of a long chat.

Chat about a long document for several turns, with a prefix cache and without. Then repeat the last turn in a
newly started engine, which has only the cache files on disk. Exit status 1 if any token differs.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from reprise.bench import document, options
from reprise.bench.errors import ArgumentsError
from reprise.bench.experiment import Row
from reprise.bench.local_engine import LocalEngine, equal_costs
from reprise.bench.outputs import Table, Work, report
from reprise.bench.serving.run_serve import random_turns
from reprise.bench.tables import Column
from reprise.bench.workloads.chats import user
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings
from reprise.engine.interface.events import Finished
from reprise.engine.interface.models import ModelInfo
from reprise.engine.interface.request import DraftChoice

COLUMNS = [
    Column("number", "turn"), Column("num_prompt_tokens", "prompt"), Column("num_cached_tokens", "cached"),
    Column("warm_ms", "cache, ms", "0"), Column("cold_ms", "no cache, ms", "0"),
    Column(lambda row: row["warm_ms"] / row["cold_ms"], "/ no cache", "2"),
]  # fmt: skip

FLAGS = (
    *options.shared(model=BUNDLED_MODEL, max_tokens=48, repeats=3, json=None, csv=None),
    options.Flag("--prompt-tokens", options.count, "N", 2000, "Tokens of the first prompt."),
    options.Flag("--turns", options.count, "N", 5, "Turns of the chat."),
)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the figures, write the files, and return the exit status."""
    warm: list[list[Finished]] = []
    cold: list[list[Finished]] = []
    with tempfile.TemporaryDirectory() as folder, Work({"": 2 * arguments.repeats}) as work:
        on_disk, no_cache = {"prefix_cache_dir": folder}, {"prefix_cache_bytes": 0}
        for repeat in range(arguments.repeats):
            # Only the first chat writes files: a later one would find its first turn in them.
            for chats, cache in (warm, {} if repeat else on_disk), (cold, no_cache):
                work.begin("chatting")
                chats.append(_chat(arguments, cache)[0])
                work.advance()
        restarted, info = _chat(arguments, on_disk, warm[0][:-1])
    turns = zip(zip(*warm, strict=True), zip(*cold, strict=True), strict=True)
    rows = [_row(number, *ends) for number, ends in enumerate(turns, 1)]
    rows.append(_row(f"{arguments.turns}, restarted server", restarted[-1:], [chat[-1] for chat in cold]))
    is_equal = len({tuple(end.tokens for end in chat) for chat in (*warm, *cold, restarted)}) == 1
    result = document.new_document(arguments, info, turns={"rows": rows, "equal": is_equal})
    title = f"Time to first token, medians of {arguments.repeats} chats"
    note = "all tokens equal" if is_equal else "FAIL: tokens differ"
    report(arguments, result, rows, Table(COLUMNS, title, [note], width=100, group=""))
    return 0 if is_equal else 1


def _chat(
    arguments: argparse.Namespace, cache: dict[str, Any], ends: Sequence[Finished] = ()
) -> tuple[list[Finished], ModelInfo]:
    """Return the answers of all turns. cache: settings. ends: answers that an earlier chat gave."""
    settings = Settings(model=str(arguments.model), draft_type="none", **cache)
    ends = list(ends)
    with LocalEngine(settings, equal_costs()) as local:
        tokenizer = local.engine.tokenizer
        question = next(random_turns(tokenizer, arguments.prompt_tokens, seed=1))
        for turn in range(arguments.turns):
            if turn == len(ends):
                requests = local.requests([question], DraftChoice(), arguments.max_tokens, seed=1)
                if not requests:
                    raise ArgumentsError(f"turn {turn + 1} does not fit into the context of the model")
                ends += local.answer(requests)
            answer = {"role": "assistant", "content": tokenizer.decode(ends[turn].tokens)}
            messages = (*question.messages, answer, user(f"And what is number {turn + 1}?"))
            question = replace(question, messages=messages)
        return ends, local.engine.info


def _row(number: int | str, warm: Sequence[Finished], cold: Sequence[Finished]) -> Row:
    """Return the medians of a turn over all chats, with a prefix cache and without."""
    usage = warm[0].usage
    return {
        "number": number, "num_prompt_tokens": usage.num_prompt_tokens,
        "num_cached_tokens": usage.num_cached_tokens,
        "warm_ms": 1000 * median(end.usage.first_token_s for end in warm),
        "cold_ms": 1000 * median(end.usage.first_token_s for end in cold),
    }  # fmt: skip
