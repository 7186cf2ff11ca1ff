"""`reprise verify --speed`: time every request with drafting and without, and compare with the bound.

Both ways alternate in one engine with the server's settings: costs as measured and learned, a prefix cache,
the draft type auto. The drafters forget what they saw before each run of a chat, or they would draft its own
earlier answer. Prompts are in the prefix cache, so that prefill does not hide what drafting costs before the
first token.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import options
from bench.local_engine import LocalEngine
from bench.outputs import Work
from bench.verify.bound import Judged, is_chance, judge
from bench.workloads import Chat, make_chats
from config.settings import Settings
from engine.request import DraftChoice, Finished
from engine.speculative.costs.slowdown_budget import ALLOWANCE_STEPS, PROBING_SHARE

ROUNDS = 5
LOOKED_UP = ("code", "passage")
WITHOUT_GAIN = ("free", "trap", "remap")
"""Workloads whose answers cannot be looked up, so that drafting can only lose."""

PLAIN, DRAFTED = DraftChoice("none"), DraftChoice()
ROUND = (PLAIN, DRAFTED, DRAFTED, PLAIN)
"""The runs of one round: a machine that slows down steadily favors neither way."""
WARM_UP = (PLAIN, DRAFTED)
"""Compiles kernels and fills the prefix cache."""

NOTES = (
    "first token: since submission. answer: from the end of prefill to the last token. Medians of all runs.",
    "bound: the most that drafting may take, {percent:g} % and {steps:g} plain steps more than without.",
    "noise: 3 standard errors of the difference of two medians, judged by the spread of the plain runs.",
    "over: above the bound by more than the noise, and above it in each round. unclear: above the bound, but",
    "not so; try more --rounds, or a machine that does nothing else.",
)
DIFFERING = (
    "* answers differ; `reprise verify` shows where. Their times are scaled to the same number of tokens."
)


@dataclass(frozen=True, slots=True)
class Run:
    """One answer to a request. seconds: from its submission to its terminal event."""

    end: Finished
    seconds: float

    @property
    def decode_s(self) -> float:
        """Seconds since the end of prefill."""
        return self.seconds - self.end.usage.prefill_s

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer."""
        return len(self.end.tokens)


@dataclass(frozen=True, slots=True)
class Timed:
    """All runs of one request.

    turn: its position in the chat, from 1. overhead: the setting draft_overhead.
    """

    chat: str
    turn: int
    plain: tuple[Run, ...]
    drafted: tuple[Run, ...]
    overhead: float

    @property
    def answers_differ(self) -> bool:
        """Whether any two answers differ; without exact mode near-ties may be decided differently."""
        return len({run.end.tokens for run in self.plain + self.drafted}) > 1

    @property
    def decode(self) -> Judged:
        """Judge the time of the answer. Times of answers of another length are scaled to the first one's."""
        return self._judge(lambda run: run.decode_s * self.plain[0].num_tokens / run.num_tokens)

    @property
    def first_token(self) -> Judged:
        """Judge the time to the first token."""
        return self._judge(lambda run: run.end.usage.first_token_s)

    @property
    def is_over(self) -> bool:
        """Whether the request took longer than the bound, by more than the noise."""
        return "over" in (self.decode.verdict, self.first_token.verdict)

    def _judge(self, seconds: Callable[[Run], float]) -> Judged:
        step_s = median(run.decode_s / run.num_tokens for run in self.plain)

        def by_round(runs: Sequence[Run]) -> list[tuple[float, float]]:
            return [(seconds(one), seconds(other)) for one, other in zip(runs[::2], runs[1::2], strict=True)]

        return judge(by_round(self.plain), by_round(self.drafted), step_s, self.overhead)

    def as_row(self) -> dict[str, Any]:
        """Return the row of a result document."""
        usage = self.plain[0].end.usage
        judged = {"decode": self.decode, "first_token": self.first_token}
        return {
            "chat": self.chat,
            "turn": self.turn,
            "prompt_tokens": usage.num_prompt_tokens,
            "answer_tokens": self.plain[0].num_tokens,
            "drafted_tokens": sum(run.end.usage.drafting.num_drafted for run in self.drafted),
            "accepted_tokens": sum(run.end.usage.drafting.num_accepted for run in self.drafted),
            "answers_differ": self.answers_differ,
            **{name: asdict(one) | {"verdict": one.verdict} for name, one in judged.items()},
            "plain_runs_s": [[run.end.usage.first_token_s, run.decode_s] for run in self.plain],
            "drafted_runs_s": [[run.end.usage.first_token_s, run.decode_s] for run in self.drafted],
        }


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return the server's settings, with what the flags change."""
    return Settings(
        model=str(arguments.model) if arguments.model else None,
        **options.draft_model_settings(arguments),
        num_draft_tokens=arguments.num_draft_tokens,
        exact=arguments.exact,
    )


def time_chats(
    local: LocalEngine, chats: Sequence[Chat], arguments: argparse.Namespace, console: Console
) -> list[Timed]:
    """Return a Timed for every request that has room for an answer."""
    runs: dict[tuple[int, int], dict[DraftChoice, list[Run]]] = {}
    num_rounds = arguments.rounds or ROUNDS
    with Work(len(chats) * (len(WARM_UP) + num_rounds * len(ROUND)), console) as work:
        for ways in (WARM_UP, *[ROUND] * num_rounds):
            # All chats before the next round, so that no disturbance lasts for all rounds of a chat.
            for at, chat in enumerate(chats):
                for how in ways:
                    for turn, run in _answer(local, chat, how, arguments):
                        runs.setdefault((at, turn), {PLAIN: [], DRAFTED: []})[how].append(run)
                    work.advance()
    overhead = local.engine.settings.draft_overhead
    return [
        Timed(chats[at].workload, turn, tuple(by_way[PLAIN][1:]), tuple(by_way[DRAFTED][1:]), overhead)
        for (at, turn), by_way in sorted(runs.items(), key=lambda item: item[0])
    ]


def make_own_chats(local: LocalEngine, arguments: argparse.Namespace) -> list[Chat]:
    """Generate chats: some from which drafting gains, and some from which it cannot."""
    chosen = [(name, length) for length in arguments.prompt_tokens for name in LOOKED_UP]
    chosen += [(name, None) for name in WITHOUT_GAIN]
    return [make_chats(name, 1, arguments.seed, local.count_tokens, length)[0] for name, length in chosen]


def _answer(
    local: LocalEngine, chat: Chat, how: DraftChoice, arguments: argparse.Namespace
) -> list[tuple[int, Run]]:
    """Answer the turns of a chat; return the measured ones by their numbers."""
    local.engine.table_reset()
    runs = []
    for number, turn in enumerate(chat.turns, 1):
        requests = local.requests([turn], how, arguments.max_tokens, arguments.seed)
        if not requests:
            continue
        start_s = perf_counter()
        (end,) = local.answer(requests)
        run = Run(end, perf_counter() - start_s)
        if turn.is_measured:
            runs.append((number, run))
    return runs


def print_speed(console: Console, timed: Sequence[Timed], name: str) -> None:
    """Print two lines per request, for the first token and for the answer, and the totals."""
    table = Table(title=f"Milliseconds that {name} takes for each request, without drafting and with it")
    for heading in ("chat", "tokens", "time"):
        table.add_column(heading)
    for heading in ("plain", "drafted", "ratio", "bound", "noise"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for one in timed:
        lengths = f"{one.plain[0].end.usage.num_prompt_tokens} + {one.plain[0].num_tokens}"
        chat = f"{one.chat} {one.turn}" + (" *" if one.answers_differ else "")
        table.add_row(chat, lengths, "first token", *_cells([one.first_token]), one.first_token.verdict)
        table.add_row("", "", "answer", *_cells([one.decode]), one.decode.verdict)
    table.add_section()
    table.add_row("all", "", "first token", *_cells([one.first_token for one in timed])[:3])
    table.add_row("", "", "answer", *_cells([one.decode for one in timed])[:3])
    console.print(table)
    percent = 100 * (timed[0].overhead + PROBING_SHARE)
    for note in NOTES:
        console.print(note.format(percent=percent, steps=ALLOWANCE_STEPS), style="dim", highlight=False)
    if any(one.answers_differ for one in timed):
        console.print(DIFFERING, style="yellow", highlight=False)
    num_over = sum(one.is_over for one in timed)
    num_unclear = sum("unclear" in (one.decode.verdict, one.first_token.verdict) for one in timed)
    console.print(f"{len(timed)} requests: {num_over} over the bound, {num_unclear} unclear", highlight=False)
    num_runs, plain, drafted = sum(2 * len(one.plain) for one in timed), *count_slow(timed)
    chance = "may be chance" if is_chance(plain, drafted) else "is no chance"
    console.print(
        f"single times above the bound and the noise: {drafted} of {num_runs} with drafting, "
        f"{plain} of {num_runs} without, which {chance}",
        highlight=False,
    )


def count_slow(timed: Sequence[Timed]) -> tuple[int, int]:
    """Count the plain and the drafted times, of single runs, that are above the bound and the noise."""
    judged = [judged for one in timed for judged in (one.first_token, one.decode)]
    return sum(one.num_slow_plain for one in judged), sum(one.num_slow_drafted for one in judged)


def is_within_bound(timed: Sequence[Timed]) -> bool:
    """Whether no request is over the bound, and single runs are slow no more often than by chance."""
    return not any(one.is_over for one in timed) and is_chance(*count_slow(timed))


def _cells(judged: Sequence[Judged]) -> tuple[str, ...]:
    """Return plain time, drafted time, ratio, bound and noise, summed over several times."""
    plain_s, drafted_s = sum(one.plain_s for one in judged), sum(one.drafted_s for one in judged)
    bound_s, noise_s = sum(one.bound_s for one in judged), sum(one.noise_s for one in judged)
    plain, drafted, bound, noise = (f"{1000 * s:.1f}" for s in (plain_s, drafted_s, bound_s, noise_s))
    return plain, drafted, f"{drafted_s / plain_s:.2f}", bound, noise
