"""`reprise bench turns`: measure the time to first token in each turn of a chat about a long document.

The same chat runs alternately with a prefix cache and without, and the tokens are compared. Then the last
turn is repeated in a newly started engine, which has only the cache files on disk.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence

from bench import options
from bench.experiment import Row
from bench.local_engine import LocalEngine
from bench.machine import describe_machine
from bench.outputs import Work, make_console
from bench.serving.prompts import PromptMaker
from bench.tables import Column, print_rows
from config.settings import BUNDLED_MODEL, Settings
from engine.request import Finished, GenerationRequest, Sampling
from engine.speculative.costs.step_costs import StepCosts

SUMMARY = "Measure the time to the first token in each turn of a long chat."
_WIDTH = 100


COLUMNS = [
    Column("number", "turn"),
    Column("num_prompt_tokens", "prompt"),
    Column("num_cached_tokens", "cached"),
    Column("warm_ms", "cache, ms", "0"),
    Column("cold_ms", "no cache, ms", "0"),
    Column("of_first", "/ turn 1", "2"),
    Column(lambda row: row["warm_ms"] / row["cold_ms"], "/ no cache", "2"),
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench turns` to the parser."""
    parser.description = (
        "Chat about a long document for several turns, with a prefix cache and without, and report the time "
        "to the first token of each turn. Exit status 1 if any token differs."
    )
    options.add(parser, model=None)
    for name, default, text in (
        ("--prompt-tokens", 2000, "Tokens of the first prompt."),
        ("--turns", 5, "Turns of the chat."),
        ("--max-tokens", 48, "Tokens of each answer."),
        ("--repeats", 3, "Chats with and without the cache."),
    ):
        parser.add_argument(
            name, type=options.count, default=default, metavar="N", help=f"{text} Default: {default}."
        )
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, and return the exit status."""
    model = str(arguments.model or BUNDLED_MODEL)
    ends: dict[str, list[list[Finished]]] = {"warm": [], "cold": []}
    with tempfile.TemporaryDirectory() as folder, Work(2 * arguments.repeats + 1) as work:
        work.begin("chatting")
        for repeat in range(arguments.repeats):
            for kind, kept in (("warm", {"prefix_cache_dir": folder}), ("cold", {"prefix_cache_bytes": 0})):
                if repeat and kind == "warm":
                    # The first turn would be in the files of an earlier repeat.
                    kept = {}
                ends[kind].append(_chat(arguments, Settings(model=model, draft_type="none", **kept)))
                work.advance()
        settings = Settings(model=model, draft_type="none", prefix_cache_dir=folder)
        restarted = _chat(arguments, settings, only=arguments.turns - 1, history=ends["warm"][0])[-1]
        work.advance()
    warm = [_turn(number, ends) for number in range(arguments.turns)]
    tokens = {tuple(end.tokens for end in chat) for chats in ends.values() for chat in chats}
    is_equal = len(tokens) == 1 and restarted.tokens == ends["warm"][0][-1].tokens
    _report(arguments, warm, restarted, is_equal)
    return 0 if is_equal else 1


def _chat(
    arguments: argparse.Namespace,
    settings: Settings,
    only: int | None = None,
    history: Sequence[Finished] = (),
) -> list[Finished]:
    """Return the answers of all turns. only: answer just this turn, taking earlier answers from history."""
    ends: list[Finished] = list(history[:only]) if only is not None else []
    with LocalEngine(settings, StepCosts({(1, 1): 1.0}, is_learned=False)) as local:
        engine = local.engine
        document = PromptMaker(engine.tokenizer, arguments.prompt_tokens, seed=1).make().text
        messages = [{"role": "user", "content": document}]
        for turn in range(arguments.turns):
            if turn == len(ends):
                prompt = local.prompt(messages)
                # The end tokens are forbidden, so that all answers have the same length.
                bias = tuple((token, -100.0) for token in sorted(engine.tokenizer.eos_ids))
                sampling = Sampling(seed=1, temperature=0.0, logit_bias=bias)
                ends += local.answer([GenerationRequest(f"{turn}", prompt, arguments.max_tokens, sampling)])
            messages.append({"role": "assistant", "content": engine.tokenizer.decode(ends[turn].tokens)})
            messages.append({"role": "user", "content": f"And what is number {turn + 1}?"})
    return ends


def _turn(number: int, ends: dict[str, list[list[Finished]]]) -> Row:
    """Return the row of a turn: medians over the repeats, with a prefix cache (warm) and without (cold)."""
    first_ms = {
        f"{kind}_ms": 1000 * statistics.median(chat[number].usage.first_token_s for chat in chats)
        for kind, chats in ends.items()
    }
    usage = ends["warm"][0][number].usage
    counts = {"num_prompt_tokens": usage.num_prompt_tokens, "num_cached_tokens": usage.num_cached_tokens}
    return {"number": number + 1} | counts | first_ms


def _report(arguments: argparse.Namespace, turns: Sequence[Row], restarted: Finished, is_equal: bool) -> None:
    cached, restarted_ms = restarted.usage.num_cached_tokens, 1000 * restarted.usage.first_token_s
    if arguments.json:
        after = {"first_token_ms": restarted_ms, "num_cached_tokens": cached}
        results = {"machine": describe_machine(), "turns": turns, "after_restart": after, "equal": is_equal}
        json.dump(results, sys.stdout, indent=2)
        return
    last = turns[-1]
    again = {"number": f"{last['number']}, restarted", "num_cached_tokens": cached, "warm_ms": restarted_ms}
    rows = [row | {"of_first": row["warm_ms"] / turns[0]["warm_ms"]} for row in (*turns, last | again)]
    console = make_console(_WIDTH)
    print_rows(console, rows, COLUMNS, f"Time to first token, medians of {arguments.repeats} chats")
    console.print("all tokens equal" if is_equal else "TOKENS DIFFER")
