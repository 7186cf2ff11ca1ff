"""What is measured, in which order, and what is found."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.decode.rows import Trial
from bench.decode.runs import FREE, PLAIN, Configuration, Runner, TurnRun
from bench.hindsight import best_speedup, best_width_speedup
from bench.local_engine import LocalEngine
from bench.parity import Parity
from bench.workloads import Chat

PREFILL_WEIGHT = 0.1
"""The time that a token of a prompt takes, in tokens of an answer; for the time left alone."""


@dataclass(frozen=True, slots=True)
class Group:
    """Chats that are asked side by side. weight: about how long one run of them takes, in tokens."""

    workload: str
    prompt_tokens: int | None
    chats: tuple[Chat, ...]
    weight: float
    is_first: bool

    @property
    def has_schema(self) -> bool:
        """Whether answers with drafts keep to a schema."""
        return any(turn.schema for chat in self.chats for turn in chat.turns)


def make_groups(
    local: LocalEngine, chats: Sequence[Sequence[Chat]], streams: int, max_tokens: int
) -> list[Group]:
    """Groups of so many streams. chats: those of each workload and length; a rest of too few is left out."""
    groups = []
    for alike in chats:
        for at in range(0, len(alike) - streams + 1, streams):
            together = tuple(alike[at : at + streams])
            first = together[0]
            weight = sum(_weight(local, chat, max_tokens) for chat in together)
            groups.append(Group(first.workload, first.prompt_tokens, together, weight, at == 0))
    return groups


def num_rounds(group: Group, repeats: int) -> int:
    """How often each way to answer is run."""
    return repeats + group.is_first


def num_ways(group: Group, configurations: Sequence[Configuration]) -> int:
    """How many ways to answer there are: plainly, with each draft, and with a schema in two plain ways."""
    return 1 + group.has_schema + len(configurations)


def measure(
    runner: Runner,
    group: Group,
    configurations: Sequence[Configuration],
    repeats: int,
    advance: Callable[[float], None],
) -> list[Trial]:
    """Trials of every turn and configuration.

    All ways to answer take turns; the order is reversed from round to round, so that a machine that gets
    slower favours none. The first group of a workload has a round before that counts for nothing.
    advance: takes the weight of each run when it is done.
    """
    baseline = FREE if group.has_schema else PLAIN
    ways = [baseline, *([PLAIN] if group.has_schema else []), *configurations]
    found: dict[Configuration, list[list[TurnRun]]] = {way: [] for way in ways}
    for number in range(num_rounds(group, repeats)):
        for way in ways if number % 2 == 0 else reversed(ways):
            run = runner.run(group.chats, way)
            if number or not group.is_first:
                found[way].append(run)
            advance(group.weight)
    return [trial for way in configurations for trial in _trials(runner, group, way, found, baseline)]


def _trials(
    runner: Runner,
    group: Group,
    way: Configuration,
    found: dict[Configuration, list[list[TurnRun]]],
    baseline: Configuration,
) -> Iterator[Trial]:
    for at, measured in enumerate(found[way][0]):
        drafted = [run[at] for run in found[way]]
        plain = [run[at] for run in found[baseline]]
        constrained = [run[at] for run in found[PLAIN]] if group.has_schema else []
        parity = Parity()
        prompts = _prompts(runner, group, measured.turn)
        for stream, prompt in enumerate(prompts):
            parity.compare(
                [run.tokens[stream] for run in constrained or plain],
                [run.tokens[stream] for run in drafted],
                lambda before, prompt=prompt: runner.local.engine.margin((*prompt, *before)),  # type: ignore[misc]
            )
        best_width, hindsight = _known_afterwards(runner, group, way, prompts, measured)
        yield Trial(
            group.workload, group.prompt_tokens, len(group.chats), way, measured.turn, plain, drafted, parity,
            constrained, best_width, hindsight,
        )  # fmt: skip


def _prompts(runner: Runner, group: Group, turn: int) -> list[tuple[int, ...]]:
    """The prompts of a turn that was asked, in the order of its streams."""
    turns = [chat.turns[turn - 1] for chat in group.chats if turn <= len(chat.turns)]
    return [runner.local.prompt_of(one) for one in turns]


def _known_afterwards(
    runner: Runner,
    group: Group,
    way: Configuration,
    prompts: Sequence[tuple[int, ...]],
    run: TurnRun,
) -> tuple[float, float] | tuple[None, None]:
    """What the best width and the best widths would have brought, where memory and a grammar had no part."""
    is_alone = len(group.chats) == len(group.chats[0].turns) == 1
    if not is_alone or group.has_schema or way.draft_type == "draft-model":
        return None, None
    known = runner.local.engine.costs, way.draft_type, prompts[0], run.tokens[0]
    widest = way.num_draft_tokens + 1
    return best_width_speedup(*known, widest), best_speedup(*known, widest)


def _weight(local: LocalEngine, chat: Chat, max_tokens: int) -> float:
    weight = 0.0
    for turn in chat.turns:
        said = len(local.engine.tokenizer.encode(turn.reference)) + 1 if turn.reference else max_tokens
        weight += PREFILL_WEIGHT * len(local.prompt_of(turn)) + min(said, max_tokens)
    return weight
