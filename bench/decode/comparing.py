"""Compare drafted answers with plain ones, and with the best that their drafters could have reached."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from bench.decode.answering import PLAIN, Arm, Case
from bench.experiment import Row
from bench.local_engine import LocalEngine
from bench.parity import Parity
from bench.replay.policies import speedups
from bench.workloads import Chat, lengths_of, make_chats
from config.settings import Settings

PREFILL_WEIGHT = 0.1
"""Prefill time per prompt token, in units of decode time per token; used only to estimate the time left."""


def arms_of(drafted: Sequence[Arm]) -> dict[str, Arm]:
    """Return the arms by name: plainly without schemas, plainly, and the drafted ones."""
    named = {f"{arm.draft_type} {arm.num_draft_tokens}": arm for arm in drafted}
    return {"free": Arm(is_free=True), "plain": PLAIN, **named}


def chats_of(
    arguments: argparse.Namespace, local: LocalEngine, count: int, is_short: bool = False
) -> list[list[Chat]]:
    """Make count chats of each requested workload and prompt length. is_short: only of the first length."""
    requested = getattr(arguments, "prompt_tokens", None)
    return [
        make_chats(name, count, arguments.seed, local.count_tokens, length)
        for name in arguments.workloads
        for length in lengths_of(name, requested)[: 1 if is_short else None]
    ]


def settings_of(arguments: argparse.Namespace, **chosen: Any) -> Settings:
    """Return the settings of an engine without a prefix cache, with the requested model."""
    model = str(arguments.model) if arguments.model else None
    return Settings(model=model, prefix_cache_bytes=0, **chosen)


def make_cases(
    local: LocalEngine, chats: Sequence[Sequence[Chat]], streams: int, max_tokens: int
) -> dict[str, Case]:
    """Group chats by number of streams; an incomplete group is left out. chats: per workload and length."""
    cases = {}
    for alike in chats:
        for at in range(0, len(alike) - streams + 1, streams):
            together = tuple(alike[at : at + streams])
            weight = sum(_weight(local, chat, max_tokens) for chat in together)
            name = f"{together[0].workload} {together[0].prompt_tokens or ''} {at // streams}"
            cases[name] = Case(together, weight, is_first=at == 0)
    return cases


def weight_of(cases: Mapping[str, Case], num_drafted: int, repeats: int) -> float:
    """Return the weight of all runs, with this number of drafted arms."""
    return sum(
        case.weight * (repeats + case.is_first) * (1 + case.has_schema + num_drafted)
        for case in cases.values()
    )


def _weight(local: LocalEngine, chat: Chat, max_tokens: int) -> float:
    weight = 0.0
    for turn in chat.turns:
        num_tokens = len(local.engine.tokenizer.encode(turn.reference)) + 1 if turn.reference else max_tokens
        weight += PREFILL_WEIGHT * len(local.prompt_of(turn)) + min(num_tokens, max_tokens)
    return weight


def check(local: LocalEngine, cases: Mapping[str, Case], runs: Sequence[Row]) -> list[Row]:
    """Return a row for each drafted answer: case, turn, arm, parity, and best_width and hindsight speedups.

    Speedups are only of single turns without a schema, drafted from the text of the chat alone.
    """
    answers: dict[tuple[str, int, str], list[Row]] = {}
    for run in runs:
        answers.setdefault((run["case"], run["turn"], run["arm"]), []).append(run)
    checks = []
    for (name, turn, arm), drafted in answers.items():
        if arm in ("free", "plain"):
            continue
        case, plain, first = cases[name], answers[name, turn, "plain"], drafted[0]
        turns = [chat.turns[turn - 1] for chat in case.chats if turn <= len(chat.turns)]
        prompts = [local.prompt_of(one) for one in turns]
        parity = Parity()
        for stream, prompt in enumerate(prompts):
            parity.compare(
                [run["tokens"][stream] for run in plain], [run["tokens"][stream] for run in drafted],
                lambda before, prompt=prompt: local.engine.margin((*prompt, *before)),  # type: ignore[misc]
            )  # fmt: skip
        found = {"case": name, "turn": turn, "arm": arm, "parity": parity}
        is_alone = len(case.chats) == len(case.chats[0].turns) == 1 and not case.has_schema
        if is_alone and first["draft_type"] != "draft-model" and first["num_draft_tokens"]:
            widest = first["num_draft_tokens"] + 1
            costs, answer = local.engine.costs, first["tokens"][0]
            found["best_width"], found["hindsight"] = speedups(
                costs, first["draft_type"], prompts[0], answer, widest
            )
        checks.append(found)
    return checks
