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
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench import options
from bench.local_engine import LocalEngine
from bench.machine import describe_machine
from bench.serving.prompts import PromptMaker
from config.settings import BUNDLED_MODEL, Settings
from engine.request import Finished, GenerationRequest, Sampling
from engine.speculative.costs.step_costs import StepCosts

_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Turn:
    """Medians over the repeats. warm_ms, cold_ms: time to first token with a prefix cache, and without."""

    number: int
    num_prompt_tokens: int
    num_cached_tokens: int
    warm_ms: float
    cold_ms: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench turns` to the parser."""
    parser.description = (
        "Chat about a long document for several turns, with a prefix cache and without, and report the time "
        "to the first token of each turn. Exit status 1 if any token differs."
    )
    count = options.count
    add = parser.add_argument
    add("--model", type=options.model_folder, metavar="DIR", help="Default: the bundled model.")
    add(
        "--prompt-tokens", type=count, default=2000, metavar="N",
        help="Tokens of the first prompt. Default: 2000.",
    )  # fmt: skip
    add("--turns", type=count, default=5, metavar="N", help="Turns of the chat. Default: 5.")
    add("--max-tokens", type=count, default=48, metavar="N", help="Tokens of each answer. Default: 48.")
    add("--repeats", type=count, default=3, metavar="N", help="Chats with and without the cache. Default: 3.")
    add("--json", action="store_true", help="Print JSON instead of a table.")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, and return the exit status."""
    console = Console(stderr=True, width=_WIDTH)
    model = str(arguments.model or BUNDLED_MODEL)
    ends: dict[str, list[list[Finished]]] = {"warm": [], "cold": []}
    with tempfile.TemporaryDirectory() as folder, Progress(console=console, transient=True) as bar:
        task = bar.add_task("chatting", total=2 * arguments.repeats + 1)
        for repeat in range(arguments.repeats):
            for kind, kept in (("warm", {"prefix_cache_dir": folder}), ("cold", {"prefix_cache_bytes": 0})):
                if repeat and kind == "warm":
                    # The first turn would be in the files of an earlier repeat.
                    kept = {}
                ends[kind].append(_chat(arguments, Settings(model=model, draft_type="none", **kept)))
                bar.advance(task)
        settings = Settings(model=model, draft_type="none", prefix_cache_dir=folder)
        restarted = _chat(arguments, settings, only=arguments.turns - 1, history=ends["warm"][0])[-1]
        bar.advance(task)
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


def _turn(number: int, ends: dict[str, list[list[Finished]]]) -> Turn:
    first_ms = {
        kind: 1000 * statistics.median(chat[number].usage.first_token_s for chat in chats)
        for kind, chats in ends.items()
    }
    usage = ends["warm"][0][number].usage
    return Turn(
        number + 1, usage.num_prompt_tokens, usage.num_cached_tokens, first_ms["warm"], first_ms["cold"]
    )


def _report(
    arguments: argparse.Namespace, turns: Sequence[Turn], restarted: Finished, is_equal: bool
) -> None:
    restarted_ms = 1000 * restarted.usage.first_token_s
    if arguments.json:
        results: dict[str, Any] = {"machine": describe_machine(), "turns": [asdict(turn) for turn in turns]}
        results["after_restart"] = {
            "first_token_ms": restarted_ms, "num_cached_tokens": restarted.usage.num_cached_tokens,
        }  # fmt: skip
        json.dump(results | {"equal": is_equal}, sys.stdout, indent=2)
        return
    table = Table(title=f"Time to first token, medians of {arguments.repeats} chats", width=_WIDTH)
    for heading in ("turn", "prompt", "cached", "cache, ms", "no cache, ms", "/ turn 1", "/ no cache"):
        table.add_column(heading, justify="right")
    for turn in turns:
        table.add_row(
            f"{turn.number}", f"{turn.num_prompt_tokens}", f"{turn.num_cached_tokens}",
            f"{turn.warm_ms:.0f}", f"{turn.cold_ms:.0f}",
            f"{turn.warm_ms / turns[0].warm_ms:.2f}", f"{turn.warm_ms / turn.cold_ms:.2f}",
        )  # fmt: skip
    last, usage = turns[-1], restarted.usage
    table.add_row(
        f"{last.number}, restarted", f"{last.num_prompt_tokens}", f"{usage.num_cached_tokens}",
        f"{restarted_ms:.0f}", f"{last.cold_ms:.0f}",
        f"{restarted_ms / turns[0].warm_ms:.2f}", f"{restarted_ms / last.cold_ms:.2f}",
    )  # fmt: skip
    console = Console(width=_WIDTH)
    console.print(table)
    console.print("all tokens equal" if is_equal else "TOKENS DIFFER")
