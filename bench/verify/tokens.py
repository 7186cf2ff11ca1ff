"""Compare drafted answers with plain ones, token by token, for one model on this machine.

Every prompt is answered three times plainly and three times with each draft type, greedily and with a
temperature; all 3 x 3 pairs of token ids are compared. Drafts are verified here whether or not they pay off,
so that many widths are tried.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench import options
from bench.local_engine import LocalEngine
from bench.parity import Divergence, Parity
from bench.workloads import Chat, make_chats
from config.settings import Settings
from engine.request import DraftChoice, DraftType, GenerationRequest, Sampling
from engine.speculative.costs.calibration import WIDTHS
from engine.speculative.costs.exact_widths import Exactness
from engine.speculative.costs.step_costs import StepCosts

RUNS = 3
TEMPERATURES = (0.0, 0.8)
LOOKUPS: tuple[DraftType, ...] = ("suffix", "ngram-simple", "ngram-mod")
EXACT_ROWS = (1, 2, 4)
POLISH = ("edits_polish", "passages_polish")


@dataclass
class Verdict:
    """One draft type at one prompt length.

    by_position: (drafted, accepted) for each position in a draft.
    """

    draft_type: str
    num_prompt_tokens: int
    parity: Parity = field(default_factory=Parity)
    num_drafted: int = 0
    by_position: list[list[int]] = field(default_factory=list)

    def as_row(self) -> dict[str, Any]:
        """Return the row of a result document."""
        return {
            "draft_type": self.draft_type,
            "prompt_tokens": self.num_prompt_tokens,
            "drafted_tokens": self.num_drafted,
            "by_position": self.by_position,
            **self.parity.figures(),
        }


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
    widths = sorted({w for w in WIDTHS if w <= arguments.num_draft_tokens} | {arguments.num_draft_tokens + 1})
    return StepCosts({(1, width): 1.0 for width in widths}, is_learned=False)


def group(
    local: LocalEngine, chats: list[Chat] | None, arguments: argparse.Namespace
) -> dict[int, list[tuple[int, ...]]]:
    """Return prompts by their approximate length: those of the chats, or generated ones."""
    if chats is not None:
        prompts = [local.prompt_of(turn) for chat in chats for turn in chat.turns]
        return {max(map(len, prompts)): prompts}
    groups = {}
    for length in arguments.prompt_tokens:
        made = [
            make_chats(name, 1, arguments.seed, local.count_tokens, length)[0] for name in ("code", "passage")
        ]
        groups[length] = [local.prompt_of(chat.turns[0]) for chat in made]
    if arguments.draft_model:
        # Different vocabularies tokenize letters with diacritics differently, so these texts are included.
        chats = [make_chats(name, 1, arguments.seed, local.count_tokens)[0] for name in POLISH]
        prompts = [local.prompt_of(chat.turns[0]) for chat in chats]
        # Models with a small context may not have room for them.

        for prompt in (one for one in prompts if len(one) < local.engine.info.context_tokens):
            groups.setdefault(len(prompt), []).append(prompt)
    return groups


def verify(
    local: LocalEngine,
    groups: dict[int, list[tuple[int, ...]]],
    arguments: argparse.Namespace,
    console: Console,
) -> list[Verdict]:
    """Return a verdict per draft type and prompt length. groups: prompts by approximate length."""
    types: tuple[DraftType, ...] = LOOKUPS
    if arguments.draft_model:
        types = (*types, "draft-model")
    verdicts = {(name, length): Verdict(name, length) for name in types for length in groups}
    with Progress(console=console, transient=True) as progress:
        cases = [(length, prompt) for length, prompts in groups.items() for prompt in prompts]
        task = progress.add_task("verifying", total=len(cases) * len(TEMPERATURES))
        for (length, prompt), temperature in product(cases, TEMPERATURES):
            plain = [_answer(local, prompt, "none", temperature, arguments) for _ in range(RUNS)]
            for name in types:
                verdict = verdicts[name, length]
                drafted = []
                for _ in range(RUNS):
                    local.engine.table_reset()
                    drafted.append(_answer(local, prompt, name, temperature, arguments, verdict))
                margin = partial(_margin, local, prompt)
                verdict.parity.compare(plain, drafted, margin)
            progress.advance(task)
    return list(verdicts.values())


def _answer(
    local: LocalEngine,
    prompt: tuple[int, ...],
    name: DraftType,
    temperature: float,
    arguments: argparse.Namespace,
    verdict: Verdict | None = None,
) -> tuple[int, ...]:
    room = local.engine.info.context_tokens - len(prompt)
    sampling = Sampling(seed=arguments.seed, temperature=temperature)
    request = GenerationRequest(
        "verify", prompt, min(arguments.max_tokens, room), sampling, draft=DraftChoice(name)
    )
    (end,) = local.answer([request])
    if verdict:
        report = end.usage.drafting
        verdict.num_drafted += report.num_drafted
        for at, (drafted, accepted) in enumerate(report.by_position):
            if at == len(verdict.by_position):
                verdict.by_position.append([0, 0])
            verdict.by_position[at][0] += drafted
            verdict.by_position[at][1] += accepted
    return end.tokens


def _margin(local: LocalEngine, prompt: tuple[int, ...], before: tuple[int, ...]) -> float:
    return local.engine.margin((*prompt, *before))


def print_verdicts(console: Console, verdicts: Sequence[Verdict], local: LocalEngine, exact: bool) -> None:
    """Print a line per verdict."""
    mode = "exact" if exact else "fast"
    table = Table(title=f"Drafted against plain answers of {local.engine.info.name}, {mode} mode")
    for name in (
        "drafts",
        "prompt tokens",
        "pairs",
        "equal",
        "drafted",
        "accepted at 1, 2, 4, 8, 16",
        "first difference",
    ):
        table.add_column(name)
    for v in verdicts:
        shares = [
            f"{100 * v.by_position[at - 1][1] / v.by_position[at - 1][0]:.0f} %"
            for at in (1, 2, 4, 8, 16)
            if at <= len(v.by_position)
        ]
        first = "-" if v.parity.first is None else _place(v.parity.first)
        differing = f" ({v.parity.num_differing} differ)" if v.parity.num_differing else ""
        table.add_row(
            v.draft_type, str(v.num_prompt_tokens), str(v.parity.num_pairs),
            f"{v.parity.verdict}{differing}", str(v.num_drafted),
            ", ".join(shares) or "-", first,
        )  # fmt: skip
    console.print(table)


def find_exact(local: LocalEngine, arguments: argparse.Namespace) -> Exactness:
    """Try which widths of a step are exact, with one row and with several."""
    widths = sorted({*(w for w in WIDTHS if w > 1), arguments.num_draft_tokens + 1})
    shapes = [(rows, w) for rows in EXACT_ROWS for w in widths if w <= arguments.num_draft_tokens + 1]
    return local.engine.find_exact(shapes)


def print_exact(console: Console, local: LocalEngine, found: Exactness) -> None:
    """Print what a batch shares, and the exact widths by number of rows and circumstance."""
    table = Table(title="Tokens per row and step whose logits equal those of plain decoding, byte for byte")
    for name in ("rows", "with", "exact"):
        table.add_column(name)
    for num_rows in EXACT_ROWS:
        for circumstance, exact in found.by_circumstance(num_rows).items():
            table.add_row(str(num_rows), circumstance, exact)
    console.print(table)
    console.print(f"batch: {local.engine.info.batching}. Contexts tried: {_list(found.lengths)} tokens.")


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _place(first: Divergence) -> str:
    return f"token {first.token}, margin {first.margin:.2g}"
