"""`reprise verify`: the command line, for the check of tokens and, with --speed, that of times."""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from bench import document, options
from bench.errors import ArgumentsError
from bench.local_engine import LocalEngine
from bench.machine import describe_machine
from bench.outputs import make_console
from bench.verify import speed, tokens
from bench.workloads import Chat, read_prompts

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
    add = parser.add_argument
    add("--speed", action="store_true",
        help="Time each request with drafting and without, and compare with the bound on how much drafting "
        "may slow it down.")  # fmt: skip
    add("--model", type=options.model_folder, metavar="DIR", help="Default: the bundled model.")
    options.add(parser, draft_model=None)
    add("--prompts", type=Path, metavar="FILE",
        help='JSON lines of chats: {"messages": [...]}. Default: generated prompts.')  # fmt: skip
    add("--prompt-tokens", type=options.levels, default=(200, 600), metavar="N,M",
        help="Approximate lengths of the generated prompts. Default: 200,600.")  # fmt: skip
    add("--max-tokens", type=options.count, default=128, metavar="N",
        help="Maximum tokens of each answer. Default: 128.")  # fmt: skip
    add("--num-draft-tokens", type=options.count, default=31, metavar="N",
        help="Maximum draft length. Default: 31.")  # fmt: skip
    add("--exact", action="store_true",
        help="Draft only at widths that a trial at start found to be exact.")  # fmt: skip
    add("--seed", type=int, default=1, metavar="N", help="Seed of the prompts and of sampling. Default: 1.")
    add("--rounds", type=options.count, metavar="N",
        help="With --speed: rounds of four answers to each request, plain, drafted, drafted, plain. "
        f"Default: {speed.ROUNDS}.")  # fmt: skip
    add("--json", type=options.output_file, metavar="FILE", help="Write a result document to FILE.")


def run(arguments: argparse.Namespace) -> int:
    """Verify, print, and return the exit status."""
    try:
        chats = read_prompts(arguments.prompts) if arguments.prompts else None
        if arguments.rounds and not arguments.speed:
            raise ArgumentsError("--rounds needs --speed")
    except (OSError, ValueError, ArgumentsError) as fault:
        return _report_fault(f"{arguments.prompts}: {fault}" if isinstance(fault, OSError) else fault)
    check = _check_speed if arguments.speed else _check_tokens
    return check(chats, arguments, make_console(_WIDTH))


def _check_tokens(chats: list[Chat] | None, arguments: argparse.Namespace, console: Console) -> int:
    with LocalEngine(tokens.settings_of(arguments), tokens.costs_of(arguments)) as local:
        groups = tokens.group(local, chats, arguments)
        verdicts = tokens.verify(local, groups, arguments, console)
        tokens.print_verdicts(console, verdicts, local, arguments.exact)
        exact = tokens.find_exact(local, arguments)
        tokens.print_exact(console, local, exact)
        rows = [verdict.as_row() for verdict in verdicts]
        _finish(arguments, console, local, rows, exact=exact.describe())
    differing = any(verdict.parity.num_differing for verdict in verdicts)
    return int(differing and arguments.exact)


def _check_speed(chats: list[Chat] | None, arguments: argparse.Namespace, console: Console) -> int:
    with LocalEngine(speed.settings_of(arguments)) as local:
        chats = chats or speed.make_own_chats(local, arguments)
        timed = speed.time_chats(local, chats, arguments, console)
        if not timed:
            return _report_fault("every chat is too long for this model's context")
        speed.print_speed(console, timed, local.engine.info.name)
        _finish(arguments, console, local, [one.as_row() for one in timed])
    return int(not speed.is_within_bound(timed))


def _finish(
    arguments: argparse.Namespace,
    console: Console,
    local: LocalEngine,
    rows: list[dict[str, object]],
    **found: str,
) -> None:
    """Print the machine, and write the JSON that the user asked for."""
    console.print(", ".join(f"{key} {value}" for key, value in describe_machine().items()))
    if arguments.json:
        checked = {
            "what": "speed" if arguments.speed else "tokens",
            "seed": arguments.seed,
            "rows": rows,
        } | found
        command = document.command_line(arguments)
        record = document.new_document(command, local.engine.info, local.engine.costs, verify=checked)
        document.write(arguments.json, record)


def _report_fault(fault: object) -> int:
    print(f"reprise verify: {fault}", file=sys.stderr)
    return 2
