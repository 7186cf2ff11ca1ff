"""`reprise verify`: the command line, for the check of tokens and, with --speed, that of times."""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import document, options, outputs
from bench.errors import ArgumentsError
from bench.experiment import Row
from bench.local_engine import LocalEngine
from bench.options import Flag
from bench.verify import speed, tokens
from bench.workloads import Chat, read_prompts
from config.settings import Settings

_WIDTH = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise verify` to the parser."""
    parser.description = (
        "Answer prompts three times plainly and three times with each draft type, and compare all pairs, "
        "token by token. Without --exact, near-ties may be decided differently on machines whose kernels "
        "depend on the width of a step; differences are then reported, but are no failure. With --exact, "
        "any difference gives exit status 1. It lists the widths of a step that are exact on this machine: "
        "with one row and several, equal and different lengths (without and with a mask), and long contexts. "
        "With --speed, answers are timed instead: with drafting as "
        "`reprise serve` drafts and without, alternating. Exit status 1 then means that a request took "
        "longer than the bound on drafting allows, by more than the measured noise, or that single runs did "
        "so too often for chance."
    )
    options.add(parser, draft_model=None, seed=1, json=None)
    options.declare(
        parser,
        Flag("--speed", None, None, None,
             "Time each request with drafting and without, and compare with the bound on how much drafting "
             "may slow it down."),
        Flag("--model", options.model_folder, "DIR", None, "Default: the bundled model."),
        Flag("--prompts", Path, "FILE", None,
             'JSON lines of chats: {"messages": [...]}. Default: generated prompts.'),
        Flag("--prompt-tokens", options.levels, "N,M", (200, 600),
             "Approximate lengths of the generated prompts."),
        Flag("--max-tokens", options.count, "N", 128, "Maximum tokens of each answer."),
        Flag("--num-draft-tokens", options.count, "N", 31, "Maximum draft length."),
        Flag("--exact", None, None, None, "Draft only at widths that a trial at start found to be exact."),
        Flag("--rounds", options.count, "N", None,
             "With --speed: rounds of four answers to each request, plain, drafted, drafted, plain. "
             f"Default: {speed.ROUNDS}."),
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Verify, print, and return the exit status."""
    return outputs.run_command("reprise verify", _run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.rounds and not arguments.speed:
        raise ArgumentsError("--rounds needs --speed")
    chats = read_prompts(arguments.prompts) if arguments.prompts else None
    check = _check_speed if arguments.speed else _check_tokens
    return check(chats, arguments, outputs.make_console(_WIDTH))


def _check_tokens(chats: list[Chat] | None, arguments: argparse.Namespace, console: Console) -> int:
    settings = _settings(arguments, prefix_cache_bytes=0, max_rows=1)
    with LocalEngine(settings, tokens.costs_of(arguments)) as local:
        rows = tokens.verify(local, tokens.group(local, chats, arguments), arguments, console)
        tokens.print_verdicts(console, rows, local, arguments.exact)
        exact = tokens.find_exact(local, arguments)
        tokens.print_exact(console, local, exact)
        _finish(arguments, console, local, rows, exact=exact.describe())
    return int(arguments.exact and any(row["parity"] == "FAIL" for row in rows))


def _check_speed(chats: list[Chat] | None, arguments: argparse.Namespace, console: Console) -> int:
    with LocalEngine(_settings(arguments)) as local:
        chats = chats or speed.make_own_chats(local, arguments)
        timed = speed.time_chats(local, chats, arguments, console)
        if not timed:
            raise ArgumentsError("every chat is too long for this model's context")
        overhead = local.engine.settings.draft_overhead
        speed.print_speed(console, timed, local.engine.info.name, overhead)
        _finish(arguments, console, local, timed)
    return int(not speed.is_within_bound(timed))


def _settings(arguments: argparse.Namespace, **more: Any) -> Settings:
    """Return the server's settings, with what the flags change. more: settings."""
    return Settings(
        model=str(arguments.model) if arguments.model else None, **options.draft_model_settings(arguments),
        num_draft_tokens=arguments.num_draft_tokens, exact=arguments.exact, **more,
    )  # fmt: skip


def _finish(
    arguments: argparse.Namespace, console: Console, local: LocalEngine, rows: list[Row], **found: str
) -> None:
    """Print the machine, and write the JSON that the user asked for."""
    what = "speed" if arguments.speed else "tokens"
    section = {"what": what, "seed": arguments.seed, "rows": rows} | found
    record = document.new_document(arguments, local.engine.info, local.engine.costs, verify=section)
    outputs.finish(console, arguments, record, rows)
