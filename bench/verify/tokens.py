"""Compare drafted answers with plain ones, token by token, for one model on this machine.

Every prompt is answered three times plainly and three times with each draft type, greedily and with a
temperature; all 3 x 3 pairs of token ids are compared. Drafts are verified here whether or not they pay off,
so that many widths are tried.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

from rich.console import Console

from bench import options
from bench.experiment import Row
from bench.local_engine import LocalEngine
from bench.outputs import Work
from bench.parity import Parity
from bench.tables import Column, print_rows
from bench.workloads import Chat, make_chats
from config.settings import Settings
from engine.request import DraftChoice, DraftingReport, DraftType, GenerationRequest, Sampling
from engine.speculative.costs.calibration import WIDTHS
from engine.speculative.costs.exact_widths import Exactness
from engine.speculative.costs.step_costs import StepCosts

RUNS = 3
TEMPERATURES = (0.0, 0.8)
LOOKUPS: tuple[DraftType, ...] = ("suffix", "ngram-simple", "ngram-mod")
EXACT_ROWS = (1, 2, 4)
POLISH = ("edits_polish", "passages_polish")
Prompts = dict[int, list[tuple[int, ...]]]
"""Token ids of prompts by their approximate length."""


def _verdict(row: Any) -> str:
    differing = f" ({row['parity_differing']} differ)" if row["parity_differing"] else ""
    return f"{row['parity']}{differing}"


def _shares(counts: Sequence[Sequence[int]]) -> str:
    at = [counts[one - 1] for one in (1, 2, 4, 8, 16) if one <= len(counts)]
    return ", ".join(f"{100 * accepted / drafted:.0f} %" for drafted, accepted in at) or "-"


def _place(first: dict[str, Any] | None) -> str:
    return f"token {first['token']}, margin {first['margin']:.2g}" if first else "-"


COLUMNS = [
    Column("draft_type", "drafts"), Column("prompt_tokens", "prompt\ntokens"),
    Column("parity_pairs", "pairs"), Column(_verdict, "equal"), Column("drafted_tokens", "drafted"),
    Column("by_position", "accepted at\n1, 2, 4, 8, 16", _shares),
    Column("first_divergence", "first difference", _place),
]  # fmt: skip


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return the settings with which answers are compared."""
    return Settings(
        model=str(arguments.model) if arguments.model else None,
        **options.draft_model_settings(arguments),
        num_draft_tokens=arguments.num_draft_tokens,
        prefix_cache_bytes=0,
        exact=arguments.exact,
        max_rows=1,
    )


def costs_of(arguments: argparse.Namespace) -> StepCosts:
    """Return equal costs for every width, by which every draft is worth trying."""
    return StepCosts({(1, width): 1.0 for width in (1, *_widths(arguments))}, is_learned=False)


def _widths(arguments: argparse.Namespace) -> list[int]:
    widest = arguments.num_draft_tokens + 1
    return sorted({width for width in WIDTHS if 1 < width < widest} | {widest})


def group(local: LocalEngine, chats: list[Chat] | None, arguments: argparse.Namespace) -> Prompts:
    """Return prompts by their approximate length: those of the chats, or generated ones."""
    if chats is not None:
        prompts = [local.prompt_of(turn) for chat in chats for turn in chat.turns]
        return {max(map(len, prompts)): prompts}

    def first(name: str, length: int | None = None) -> tuple[int, ...]:
        (chat,) = make_chats(name, 1, arguments.seed, local.count_tokens, length)
        return local.prompt_of(chat.turns[0])

    groups = {
        length: [first(name, length) for name in ("code", "passage")] for length in arguments.prompt_tokens
    }
    # Different vocabularies tokenize letters with diacritics differently, so these texts are included.
    for prompt in map(first, POLISH if arguments.draft_model else ()):
        # Models with a small context may not have room for them.
        if len(prompt) < local.engine.info.context_tokens:
            groups.setdefault(len(prompt), []).append(prompt)
    return groups


def verify(local: LocalEngine, groups: Prompts, arguments: argparse.Namespace, console: Console) -> list[Row]:
    """Return a row per draft type and prompt length."""
    types: tuple[DraftType, ...] = (*LOOKUPS, "draft-model") if arguments.draft_model else LOOKUPS
    found = {(name, length): (Parity(), Drafted()) for name in types for length in groups}
    cases = [(length, prompt) for length, prompts in groups.items() for prompt in prompts]
    with Work(len(cases) * len(TEMPERATURES), console) as work:
        for (length, prompt), temperature in product(cases, TEMPERATURES):
            work.begin(f"prompts of {length} tokens")
            plain = [_answer(local, prompt, "none", temperature, arguments) for _ in range(RUNS)]
            for name in types:
                parity, counts = found[name, length]
                drafted = []
                for _ in range(RUNS):
                    local.engine.table_reset()
                    drafted.append(_answer(local, prompt, name, temperature, arguments, counts))
                parity.compare(plain, drafted, partial(_margin, local, prompt))
            work.advance()
    return [
        {"draft_type": name, "prompt_tokens": length, "drafted_tokens": counts.num_drafted,
         "by_position": counts.by_position, **parity.figures()}
        for (name, length), (parity, counts) in found.items()
    ]  # fmt: skip


class Drafted:
    """Counts of drafted tokens; by_position: [drafted, accepted] for each position in a draft."""

    def __init__(self) -> None:
        self.num_drafted = 0
        self.by_position: list[list[int]] = []

    def add(self, report: DraftingReport) -> None:
        """Add the counts of one answer."""
        self.num_drafted += report.num_drafted
        self.by_position += [[0, 0] for _ in range(len(report.by_position) - len(self.by_position))]
        for sums, counts in zip(self.by_position, report.by_position, strict=False):
            sums[:] = [sums[0] + counts[0], sums[1] + counts[1]]


def _answer(
    local: LocalEngine,
    prompt: tuple[int, ...],
    name: DraftType,
    temperature: float,
    arguments: argparse.Namespace,
    counts: Drafted | None = None,
) -> tuple[int, ...]:
    max_tokens = min(arguments.max_tokens, local.engine.info.context_tokens - len(prompt))
    sampling = Sampling(seed=arguments.seed, temperature=temperature)
    request = GenerationRequest("verify", prompt, max_tokens, sampling, draft=DraftChoice(name))
    (end,) = local.answer([request])
    if counts:
        counts.add(end.usage.drafting)
    return end.tokens


def _margin(local: LocalEngine, prompt: tuple[int, ...], before: tuple[int, ...]) -> float:
    return local.engine.margin((*prompt, *before))


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
