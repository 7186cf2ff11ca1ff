"""`reprise verify`: compare drafted answers with plain ones, token by token; with --speed, their times.

Answer prompts three times plainly and three times with each draft type, greedily and with a temperature,
and compare all pairs, token by token, at many widths. Then list the widths of a step that are exact here.
Without --exact, near-ties may be decided differently where kernels depend on the width of a step, and
differences are reported, but are no failure. With --exact, any difference gives exit status 1.

With --speed, answers are timed instead: with drafting as `reprise serve` drafts and without, alternating.
Exit status 1 then means that a request took longer than the bound on drafting allows, by more than the
measured noise, or that single runs did so too often for chance.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from rich.console import Console

from bench import document, options, outputs
from bench.decode.answering import PLAIN, Answering, Arm, Case, check
from bench.errors import ArgumentsError
from bench.experiment import Parity, Row
from bench.local_engine import LocalEngine, equal_costs
from bench.options import Flag
from bench.tables import Column, print_rows
from bench.verify import speed
from bench.workloads import Chat, lengths_of, make_chats, read_prompts
from config.settings import Settings
from engine.request import DraftType
from engine.speculative.costs.calibration import WIDTHS
from engine.speculative.costs.exact_widths import Exactness

RUNS, TEMPERATURES, EXACT_ROWS = 3, (0.0, 0.8), (1, 2, 4)
LOOKUPS: list[DraftType] = ["suffix", "ngram-simple", "ngram-mod"]
COLUMNS = [
    Column("draft_type", "drafts"), Column("prompt_tokens", "prompt\ntokens"),
    Column("parity_pairs", "pairs"), Column("parity", "equal"), Column("parity_differing", "differ"),
    Column("drafted_tokens", "drafted"), Column("accepted_tokens", "accepted"),
    Column("first_divergence", "first difference",
           lambda first: f"token {first['token']}, margin {first['margin']:.2g}" if first else "-"),
]  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise verify` to the parser."""
    parser.description = str(__doc__).split("\n\n", 1)[1]
    options.add(
        parser, model=None, draft_model=None, prompts=None, prompt_tokens=(200, 600), max_tokens=128, seed=1,
        json=None,
    )  # fmt: skip
    options.add_settings(parser, *options.MACHINES)
    options.declare(
        parser,
        Flag("--speed", None, None, None, "Time each request, and compare with the bound on drafting."),
        Flag("--num-draft-tokens", options.count, "N", 31, "Maximum draft length."),
        Flag("--exact", None, None, None, "Draft only at widths that a trial at start found to be exact."),
        Flag("--rounds", options.count, "N", None,
             "With --speed: rounds of four answers, plain, drafted, drafted, plain. Default: 5."),
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Verify, print, and return the exit status."""
    return outputs.run_command("reprise verify", _run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.rounds and not arguments.speed:
        raise ArgumentsError("--rounds needs --speed")
    chats = read_prompts(arguments.prompts) if arguments.prompts else None
    check = _check_speed if arguments.speed else _check_tokens
    return check(chats, arguments, outputs.make_console(120))


def _check_speed(chats: list[Chat] | None, arguments: argparse.Namespace, console: Console) -> int:
    with LocalEngine(_settings(arguments)) as local:
        timed = speed.time_chats(local, chats, arguments, console)
        if not timed:
            raise ArgumentsError("every chat is too long for this model's context")
        overhead = local.engine.settings.draft_overhead
        is_within = speed.print_speed(console, timed, local.engine.info.name, overhead)
        section = {"what": "speed", "seed": arguments.seed, "rows": timed}
        record = document.new_document(arguments, local.engine.info, local.engine.costs, verify=section)
    outputs.finish(console, arguments, record, timed)
    return int(not is_within)


def _check_tokens(chats: list[Chat] | None, arguments: argparse.Namespace, console: Console) -> int:
    widest = arguments.num_draft_tokens + 1
    widths = sorted({width for width in WIDTHS if 1 < width < widest} | {widest})
    settings = _settings(arguments, prefix_cache_bytes=0, max_rows=1)
    with LocalEngine(settings, equal_costs(*widths)) as local:
        rows = _verify(local, _single_turns(local, chats, arguments), arguments, console)
        mode = "exact" if arguments.exact else "fast"
        title = f"Drafted against plain answers of {local.engine.info.name}, {mode} mode"
        print_rows(console, rows, COLUMNS, title, group="draft_type")
        exact = local.engine.find_exact(list(product(EXACT_ROWS, widths)))
        _print_exact(console, local, exact)
        section = {"what": "tokens", "seed": arguments.seed, "rows": rows, "exact": exact.describe()}
        record = document.new_document(arguments, local.engine.info, verify=section)
    outputs.finish(console, arguments, record, rows)
    return int(arguments.exact and any(row["parity"] == "FAIL" for row in rows))


def _settings(arguments: argparse.Namespace, **more: Any) -> Settings:
    """Return the server's settings, with what the flags change. more: settings."""
    return Settings(
        model=str(arguments.model) if arguments.model else None, **options.draft_model_settings(arguments),
        num_draft_tokens=arguments.num_draft_tokens, exact=arguments.exact,
        **options.settings(arguments, *options.MACHINES), **more,
    )  # fmt: skip


def _single_turns(local: LocalEngine, chats: list[Chat] | None, arguments: argparse.Namespace) -> list[Chat]:
    """Return chats of one turn: all turns of the user's, or the first ones of generated chats."""
    if chats is not None:
        return [replace(chat, turns=(turn,)) for chat in chats for turn in chat.turns]
    # Different vocabularies tokenize letters with diacritics differently, so these texts are included.
    polish = ("edits_polish", "passages_polish") if arguments.draft_model else ()
    made = [
        make_chats(name, 1, arguments.seed, local.count_tokens, length)[0]
        for name in ("code", "passage", *polish)
        for length in lengths_of(name, arguments.prompt_tokens)
    ]
    return [replace(chat, turns=chat.turns[:1]) for chat in made]


def _verify(
    local: LocalEngine, chats: Sequence[Chat], arguments: argparse.Namespace, console: Console
) -> list[Row]:
    """Return a row per draft type and prompt length."""
    info = local.engine.info
    draft_model: DraftType | None = "draft-model" if arguments.draft_model else None
    own: list[DraftType | None] = [info.head or draft_model, None if info.mask_token_id is None else "wedlm"]
    types: list[DraftType] = [*LOOKUPS, *(one for one in own if one)]
    cases = {}
    for (at, chat), temperature in product(enumerate(chats), TEMPERATURES):
        turn = replace(chat.turns[0], temperature=temperature, schema=None, max_tokens=None)
        cases[f"{at} {temperature}"] = Case((replace(chat, turns=(turn,)),))
    with outputs.Work(len(cases) * RUNS * (1 + len(types)), console) as work:
        answering = Answering(local, arguments.max_tokens, arguments.seed, work)
        runs = answering.compare({"plain": PLAIN} | {name: Arm(name) for name in types}, cases, RUNS)
    checks = check(local, cases, runs)
    rows = []
    for name, length in product(types, dict.fromkeys(run["prompt_tokens"] for run in runs)):
        drafted = [run for run in runs if (run["arm"], run["prompt_tokens"]) == (name, length)]
        parity, of_group = Parity(), {(name, run["case"]) for run in drafted}
        for one in checks:
            if (one["arm"], one["case"]) in of_group:
                parity.add(one["parity"])
        rows.append({
            "draft_type": name, "prompt_tokens": length,
            "drafted_tokens": sum(run["num_drafted"] for run in drafted),
            "accepted_tokens": sum(run["num_accepted"] for run in drafted), **parity.figures(),
        })  # fmt: skip
    return rows


def _print_exact(console: Console, local: LocalEngine, found: Exactness) -> None:
    """Print what a batch shares, and the exact widths by number of rows and circumstance."""
    rows = [
        {"rows": num_rows, "with": circumstance, "exact": exact}
        for num_rows in EXACT_ROWS
        for circumstance, exact in found.by_circumstance(num_rows).items()
    ]
    title = "Tokens per row and step whose logits equal those of plain decoding, byte for byte"
    print_rows(console, rows, [Column(one, one) for one in ("rows", "with", "exact")], title, group="rows")
    lengths = ", ".join(map(str, found.lengths))
    console.print(f"batch: {local.engine.info.batching}. Contexts tried: {lengths} tokens.")
    for number, described in enumerate(local.engine.info.ranks):
        console.print(f"rank {number}: {described}", highlight=False, markup=False)
