"""Run all configurations of the decode benchmark, interleaved, and collect trials."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.decode.rows import Trial
from bench.decode.runs import FREE, PLAIN, Configuration, Runner, TurnRun
from bench.hindsight import best_speedup, best_width_speedup
from bench.local_engine import LocalEngine
from bench.parity import Parity
from bench.workloads import Chat

PREFILL_WEIGHT = 0.1
"""Prefill time per prompt token, in units of decode time per token; used only to estimate the time left."""


@dataclass(frozen=True, slots=True)
class Group:
    """Chats that run at the same time. weight: approximate duration of one run, in decoded tokens."""

    workload: str
    prompt_tokens: int | None
    chats: tuple[Chat, ...]
    weight: float
    is_first: bool

    @property
    def has_schema(self) -> bool:
        """Whether any turn has a schema, which drafted answers then follow."""
        return any(turn.schema for chat in self.chats for turn in chat.turns)


def make_groups(
    local: LocalEngine, chats: Sequence[Sequence[Chat]], streams: int, max_tokens: int
) -> list[Group]:
    """Group chats by number of streams; an incomplete group is left out. chats: per workload and length."""
    groups = []
    for alike in chats:
        for at in range(0, len(alike) - streams + 1, streams):
            together = tuple(alike[at : at + streams])
            first = together[0]
            weight = sum(_weight(local, chat, max_tokens) for chat in together)
            groups.append(Group(first.workload, first.prompt_tokens, together, weight, at == 0))
    return groups


def num_rounds(group: Group, repeats: int) -> int:
    """Return how often each configuration runs, with the warm-up of a workload's first group."""
    return repeats + group.is_first


def num_configurations(group: Group, configurations: Sequence[Configuration]) -> int:
    """Return the number of configurations to run: plain, plain with a schema if there is one, and drafted."""
    return 1 + group.has_schema + len(configurations)


def measure(
    runner: Runner,
    group: Group,
    configurations: Sequence[Configuration],
    repeats: int,
    advance: Callable[[float], None],
) -> list[Trial]:
    """Return a trial for each turn and configuration.

    Configurations are interleaved, and their order is reversed in every other round, so that a machine that
    slows down favors none. The first group of a workload has an additional, unmeasured warm-up round.
    advance: called with the weight of each finished run.
    """
    baseline = FREE if group.has_schema else PLAIN
    order = [baseline, *([PLAIN] if group.has_schema else []), *configurations]
    runs: dict[Configuration, list[list[TurnRun]]] = {configuration: [] for configuration in order}
    for number in range(num_rounds(group, repeats)):
        for configuration in order if number % 2 == 0 else reversed(order):
            run = runner.run(group.chats, configuration)
            if number or not group.is_first:
                runs[configuration].append(run)
            advance(group.weight)
    return [
        trial
        for configuration in configurations
        for trial in _trials(runner, group, configuration, runs, baseline)
    ]


def _trials(
    runner: Runner,
    group: Group,
    configuration: Configuration,
    runs: dict[Configuration, list[list[TurnRun]]],
    baseline: Configuration,
) -> Iterator[Trial]:
    for at, measured in enumerate(runs[configuration][0]):
        drafted = [run[at] for run in runs[configuration]]
        plain = [run[at] for run in runs[baseline]]
        constrained = [run[at] for run in runs[PLAIN]] if group.has_schema else []
        parity = Parity()
        prompts = _prompts(runner, group, measured.turn)
        for stream, prompt in enumerate(prompts):
            parity.compare(
                [run.tokens[stream] for run in constrained or plain],
                [run.tokens[stream] for run in drafted],
                lambda before, prompt=prompt: runner.local.engine.margin((*prompt, *before)),  # type: ignore[misc]
            )
        best_width, hindsight = _hindsight_speedups(runner, group, configuration, prompts, measured)
        yield Trial(
            group.workload, group.prompt_tokens, len(group.chats), configuration, measured.turn, plain,
            drafted, parity, constrained, best_width, hindsight,
        )  # fmt: skip


def _prompts(runner: Runner, group: Group, turn: int) -> list[tuple[int, ...]]:
    """Return the prompts of a measured turn, one per stream."""
    turns = [chat.turns[turn - 1] for chat in group.chats if turn <= len(chat.turns)]
    return [runner.local.prompt_of(one) for one in turns]


def _hindsight_speedups(
    runner: Runner,
    group: Group,
    configuration: Configuration,
    prompts: Sequence[tuple[int, ...]],
    run: TurnRun,
) -> tuple[float, float] | tuple[None, None]:
    """Return the speedups of the best fixed width and of the best widths; None where they cannot be computed.

    They can only be computed for single turns without a schema, drafted from the text of the chat alone.
    """
    is_alone = len(group.chats) == len(group.chats[0].turns) == 1
    if not is_alone or group.has_schema or configuration.draft_type == "draft-model":
        return None, None
    answered = runner.local.engine.costs, configuration.draft_type, prompts[0], run.tokens[0]
    widest = configuration.num_draft_tokens + 1
    return best_width_speedup(*answered, widest), best_speedup(*answered, widest)


def _weight(local: LocalEngine, chat: Chat, max_tokens: int) -> float:
    weight = 0.0
    for turn in chat.turns:
        num_tokens = len(local.engine.tokenizer.encode(turn.reference)) + 1 if turn.reference else max_tokens
        weight += PREFILL_WEIGHT * len(local.prompt_of(turn)) + min(num_tokens, max_tokens)
    return weight
