"""Run chats plainly and in draft configurations, alternating, and compare every token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.decode.answering import Answering
from bench.experiment import Experiment, Row, measured
from bench.hindsight import best_speedup, best_width_speedup
from bench.local_engine import LocalEngine
from bench.outputs import Work
from bench.parity import Parity
from bench.workloads import Chat
from engine.request import DraftType

PREFILL_WEIGHT = 0.1
"""Prefill time per prompt token, in units of decode time per token; used only to estimate the time left."""


@dataclass(frozen=True, slots=True)
class Group:
    """Chats that run at the same time. weight: approximate duration of one run, in decoded tokens."""

    chats: tuple[Chat, ...]
    weight: float
    is_first: bool

    @property
    def has_schema(self) -> bool:
        """Whether any turn has a schema, which drafted answers then follow."""
        return any(turn.schema for chat in self.chats for turn in chat.turns)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A way to draft."""

    draft_type: DraftType
    num_draft_tokens: int

    def __str__(self) -> str:
        return f"{self.draft_type} {self.num_draft_tokens}"


def make_groups(
    local: LocalEngine, chats: Sequence[Sequence[Chat]], streams: int, max_tokens: int
) -> dict[str, Group]:
    """Group chats by number of streams; an incomplete group is left out. chats: per workload and length."""
    groups = {}
    for alike in chats:
        for at in range(0, len(alike) - streams + 1, streams):
            together = tuple(alike[at : at + streams])
            weight = sum(_weight(local, chat, max_tokens) for chat in together)
            name = f"{together[0].workload} {together[0].prompt_tokens or ''} {at // streams}"
            groups[name] = Group(together, weight, at == 0)
    return groups


def weight_of(groups: Sequence[Group], configurations: Sequence[Configuration], repeats: int) -> float:
    """Return the weight of all runs that compare() makes."""
    return sum(
        group.weight * (repeats + group.is_first) * (1 + group.has_schema + len(configurations))
        for group in groups
    )


def compare(
    answering: Answering,
    groups: dict[str, Group],
    configurations: Sequence[Configuration],
    repeats: int,
    work: Work,
    label: Callable[[Group], str],
    resume: Path | None = None,
    key: str = "",
) -> tuple[list[Row], dict[tuple[str, int, str], Row]]:
    """Return the measured runs, and for each answer its parity and hindsight; see bench.decode.rows.Checks.

    The first group of a workload has an additional, unmeasured warm-up round.
    """
    plain, free = Configuration("none", 0), "free"
    arms = {"plain": plain} | {str(one): one for one in configurations}
    runs: list[Row] = []
    checks = {}
    for name, group in groups.items():

        def run(arm: str, group: Group = group) -> Callable[[Group], list[Row]]:
            how = arms.get(arm, plain)
            first = group.chats[0]
            about = {"workload": first.workload, "prompt_tokens": first.prompt_tokens}
            about |= {"draft_type": how.draft_type, "num_draft_tokens": how.num_draft_tokens}

            def answer(group: Group) -> list[Row]:
                given = how.draft_type, how.num_draft_tokens or None, arm == free
                rows = [about | row for row in answering.run(group.chats, *given)]
                work.advance(group.weight)
                return rows

            return answer

        names = ([free] if group.has_schema else []) + list(arms)
        experiment = Experiment(
            {arm: run(arm) for arm in names}, {name: group}, repeats, lambda _, group=group: group.is_first,  # type: ignore[misc]
            resume=resume, key=key, watch=lambda *_, group=group: work.begin(label(group)),
        )  # fmt: skip
        found = sorted(measured(experiment.run()), key=lambda one, names=names: names.index(one["arm"]))  # type: ignore[misc]
        runs += found
        for one in configurations:
            checks.update(_checks(answering.local, group, one, found))
    return runs, checks


def _checks(
    local: LocalEngine, group: Group, how: Configuration, runs: Sequence[Row]
) -> dict[tuple[str, int, str], Row]:
    checks = {}
    of_arm = [run for run in runs if run["arm"] == str(how)]
    for place in dict.fromkeys((run["case"], run["turn"]) for run in of_arm):
        drafted, plain = (
            [run for run in runs if (run["case"], run["turn"], run["arm"]) == (*place, arm)]
            for arm in (str(how), "plain")
        )
        turns = [chat.turns[place[1] - 1] for chat in group.chats if place[1] <= len(chat.turns)]
        prompts = [local.prompt_of(turn) for turn in turns]
        parity = Parity()
        for stream, prompt in enumerate(prompts):
            parity.compare(
                [run["tokens"][stream] for run in plain],
                [run["tokens"][stream] for run in drafted],
                lambda before, prompt=prompt: local.engine.margin((*prompt, *before)),  # type: ignore[misc]
            )
        check: Row = {"parity": parity}
        # Only of single turns without a schema, drafted from the text of the chat alone.
        is_alone = len(group.chats) == len(group.chats[0].turns) == 1
        if is_alone and not group.has_schema and how.draft_type != "draft-model":
            answered = local.engine.costs, how.draft_type, prompts[0], tuple(drafted[0]["tokens"][0])
            widest = how.num_draft_tokens + 1
            check["best_width"] = best_width_speedup(*answered, widest)
            check["hindsight"] = best_speedup(*answered, widest)
        checks[(*place, str(how))] = check
    return checks


def _weight(local: LocalEngine, chat: Chat, max_tokens: int) -> float:
    weight = 0.0
    for turn in chat.turns:
        num_tokens = len(local.engine.tokenizer.encode(turn.reference)) + 1 if turn.reference else max_tokens
        weight += PREFILL_WEIGHT * len(local.prompt_of(turn)) + min(num_tokens, max_tokens)
    return weight
