"""Compare drafted answers with plain ones, token by token, for one model on this machine.

Every prompt is answered three times plainly and three times with each draft type, greedily and with a
temperature; all 3 x 3 pairs of token ids are compared. Drafts are verified here whether or not they pay off,
so that many widths are tried.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from rich.console import Console

from bench.decode.answering import PLAIN, Answering, Arm, Case, add_nested
from bench.decode.comparing import check
from bench.experiment import Row
from bench.local_engine import LocalEngine
from bench.outputs import Work
from bench.parity import Parity
from bench.tables import Column, print_rows
from bench.workloads import Chat, make_chats
from engine.request import DraftType
from engine.speculative.costs.calibration import WIDTHS
from engine.speculative.costs.exact_widths import Exactness
from engine.speculative.costs.step_costs import StepCosts

RUNS = 3
TEMPERATURES = (0.0, 0.8)
LOOKUPS: tuple[DraftType, ...] = ("suffix", "ngram-simple", "ngram-mod")
EXACT_ROWS = (1, 2, 4)
POLISH = ("edits_polish", "passages_polish")


def _verdict(row: Any) -> str:
    differing = f" ({row['parity_differing']} differ)" if row["parity_differing"] else ""
    return f"{row['parity']}{differing}"


def _shares(counts: Sequence[Sequence[int]]) -> str:
    at = [counts[one - 1] for one in (1, 2, 4, 8, 16) if one <= len(counts)]
    return ", ".join(f"{100 * accepted / drafted:.0f} %" for drafted, accepted in at) or "-"


COLUMNS = [
    Column("draft_type", "drafts"), Column("prompt_tokens", "prompt\ntokens"),
    Column("parity_pairs", "pairs"), Column(_verdict, "equal"), Column("drafted_tokens", "drafted"),
    Column("by_position", "accepted at\n1, 2, 4, 8, 16", _shares),
    Column("first_divergence", "first difference",
           lambda first: f"token {first['token']}, margin {first['margin']:.2g}" if first else "-"),
]  # fmt: skip


def costs_of(arguments: argparse.Namespace) -> StepCosts:
    """Return equal costs for every width, by which every draft is worth trying."""
    return StepCosts({(1, width): 1.0 for width in (1, *_widths(arguments))}, is_learned=False)


def _widths(arguments: argparse.Namespace) -> list[int]:
    widest = arguments.num_draft_tokens + 1
    return sorted({width for width in WIDTHS if 1 < width < widest} | {widest})


def group(local: LocalEngine, chats: list[Chat] | None, arguments: argparse.Namespace) -> list[Chat]:
    """Return chats of one turn, with the length by which they are grouped: the user's, or generated ones."""
    if chats is not None:
        single = [replace(chat, turns=(turn,)) for chat in chats for turn in chat.turns]
        longest = max(len(local.prompt_of(chat.turns[0])) for chat in single)
        return [replace(chat, prompt_tokens=longest) for chat in single]

    def first(name: str, length: int | None = None) -> Chat:
        (chat,) = make_chats(name, 1, arguments.seed, local.count_tokens, length)
        known = length or len(local.prompt_of(chat.turns[0]))
        return replace(chat, turns=chat.turns[:1], prompt_tokens=known)

    found = [first(name, length) for length in arguments.prompt_tokens for name in ("code", "passage")]
    # Different vocabularies tokenize letters with diacritics differently, so these texts are included.
    return found + [first(name) for name in (POLISH if arguments.draft_model else ())]


def verify(
    local: LocalEngine, chats: Sequence[Chat], arguments: argparse.Namespace, console: Console
) -> list[Row]:
    """Return a row per draft type and prompt length."""
    types: tuple[DraftType, ...] = (*LOOKUPS, "draft-model") if arguments.draft_model else LOOKUPS
    cases = {}
    for (at, chat), temperature in product(enumerate(chats), TEMPERATURES):
        turn = replace(chat.turns[0], temperature=temperature, schema=None, max_tokens=None)
        cases[f"{at} {temperature}"] = Case((replace(chat, turns=(turn,)),))
    with Work(len(cases) * RUNS * (1 + len(types)), console) as work:
        answering = Answering(local, arguments.max_tokens, arguments.seed, work)
        runs = answering.compare({"plain": PLAIN} | {name: Arm(name) for name in types}, cases, RUNS)
    checks = check(local, cases, runs)
    rows = []
    for name, length in product(types, dict.fromkeys(run["prompt_tokens"] for run in runs)):
        drafted = [run for run in runs if (run["arm"], run["prompt_tokens"]) == (name, length)]
        parity, of_group = Parity(), {run["case"] for run in drafted}
        for one in checks:
            if one["arm"] == name and one["case"] in of_group:
                parity.add(one["parity"])
        rows.append({
            "draft_type": name, "prompt_tokens": length, "by_position": add_nested(drafted)[1],
            "drafted_tokens": sum(run["num_drafted"] for run in drafted), **parity.figures(),
        })  # fmt: skip
    return rows


def print_verdicts(console: Console, rows: Sequence[Row], local: LocalEngine, exact: bool) -> None:
    """Print a line per draft type and prompt length."""
    mode = "exact" if exact else "fast"
    title = f"Drafted against plain answers of {local.engine.info.name}, {mode} mode"
    print_rows(console, rows, COLUMNS, title, group="draft_type")


def find_exact(local: LocalEngine, arguments: argparse.Namespace) -> Exactness:
    """Try which widths of a step are exact, with one row and with several."""
    return local.engine.find_exact(list(product(EXACT_ROWS, _widths(arguments))))


def print_exact(console: Console, local: LocalEngine, found: Exactness) -> None:
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
