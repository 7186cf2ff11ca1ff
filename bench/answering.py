"""Answer chats in several ways, called arms, and compare drafted answers with plain ones."""

import argparse
import codecs
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from reprise.bench.energy import EnergyMeter
from reprise.bench.experiment import Experiment, Progress, Row, grouped, measured, parity
from reprise.bench.local_engine import LocalEngine
from reprise.bench.workloads import Chat, lengths_of, make_chats
from reprise.config.settings import Settings
from reprise.engine.interface.events import Finished
from reprise.engine.interface.request import DraftChoice, DraftType, WindowSettings
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Case:
    """A chat to answer.

    is_first: whether it also runs once unmeasured, as a warm-up.
    prediction: token ids that each request sends as its predicted answer.
    """

    chat: Chat
    is_first: bool = False
    prediction: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """Name the workload and its prompt length, if that can be chosen."""
        length = f", {self.chat.prompt_tokens} tokens" if self.chat.prompt_tokens else ""
        return f"{self.chat.workload}{length}"


@dataclass(frozen=True)
class Arm:
    """A way to answer chats: a draft type, its draft length, and a WeDLM model's window_settings, if any.

    prepare: called with the engine before each run; by default it empties the drafters' shared tables.
    memory: describes what these then hold.
    """

    draft_type: DraftType = "none"
    num_draft_tokens: int | None = None
    window_settings: WindowSettings | None = None
    prepare: Callable[[LocalEngine], object] = lambda local: local.engine.table.reset()
    memory: str = ""


Arms = Mapping[str, Arm]
Cases = Mapping[str, Case]

PLAIN = Arm()


class Answering(LocalEngine):
    """An engine in this process that answers cases, with the workloads, lengths and seed of a command.

    skipped: names of workloads and turns left out because a prompt left no room for an answer.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        progress: Progress,
        settings: Settings,
        costs: StepCosts | None = None,
        meter: EnergyMeter | None = None,
    ) -> None:
        super().__init__(settings, costs, progress.show)
        self.arguments, self.progress, self.meter = arguments, progress, meter
        self.skipped: dict[str, None] = {}

    def chats(self, count: int) -> list[Chat]:
        """Make count chats for each requested workload and prompt length."""
        given = self.arguments
        return [
            chat
            for name in given.workloads
            for length in lengths_of(name, given.prompt_tokens)
            for chat in make_chats(name, count, given.seed, self.count_tokens, length)
        ]

    def compare(self, arms: Arms, cases: Cases, repeats: int, stage: str = "") -> list[Row]:
        """Run every arm on every case, alternating; return the measured rows, sorted by case and arm.

        stage: text before each case's label in the progress.
        """
        experiment = Experiment(
            {name: partial(self.run, arm=arm) for name, arm in arms.items()}, cases, repeats,
            lambda name: cases[name].is_first, lambda _, case: stage + cases[case].label,
        )  # fmt: skip
        places = grouped(measured(experiment.run(self.progress)), "case", "arm")
        return [row for place in product(cases, arms) for row in places.get(place, ())]

    def run(self, case: Case, arm: Arm) -> list[Row]:
        """Answer a chat once in an arm; return a row for each measured turn."""
        arm.prepare(self)
        chat, choice = case.chat, DraftChoice(arm.draft_type, arm.num_draft_tokens)
        occupancy = self.engine.table.status()["occupancy"] if arm.memory else None
        rows = []
        for number, turn in enumerate(chat.turns, 1):
            limit, seed = self.arguments.max_tokens, self.arguments.seed
            requests = self.requests([turn], choice, limit, seed, case.prediction)
            if not requests:
                self.skipped[f"{chat.workload}, turn {number}"] = None
                continue
            before_j = self.meter.read() if self.meter else None
            (end,) = self.answer([replace(one, window_settings=arm.window_settings) for one in requests])
            after_j = self.meter.read() if self.meter else None
            rows.append({
                "workload": chat.workload, "prompt_tokens": chat.prompt_tokens, "turn": number,
                "draft_type": arm.draft_type, "num_draft_tokens": arm.num_draft_tokens,
                "memory": arm.memory, "occupancy": occupancy,
                "energy_j": None if before_j is None or after_j is None else after_j - before_j,
                **row_of(end),
            })  # fmt: skip
        return rows


COUNTED = ("num_drafted", "num_accepted", "num_fed", "drafter_s")


def row_of(end: Finished) -> Row:
    """Return the row of one answer.

    decode_s: from the end of prefill to the last token. prefill_s: from admission to the end of prefill.
    by_position: [drafted, accepted] tokens of each position in a draft.
    """
    usage = end.usage
    drafting = usage.drafting
    return {
        "tokens": list(end.tokens), "origins": [list(one) for one in drafting.origins],
        "num_tokens": len(end.tokens), "num_prefilled": usage.num_prompt_tokens - usage.num_cached_tokens,
        "prefill_s": usage.prefill_s - usage.queue_s, "first_token_s": usage.first_token_s,
        "decode_s": usage.total_s - usage.prefill_s, "num_forwards": drafting.num_forwards or len(end.tokens),
        "by_position": [list(pair) for pair in drafting.by_position],
        "translation": dict(drafting.translation), **{name: getattr(drafting, name) for name in COUNTED},
    }  # fmt: skip


def check(local: LocalEngine, cases: Cases, runs: Sequence[Row]) -> list[Row]:
    """Compare drafted answers with plain ones; return parity() of each case, turn and drafting arm."""
    answers = grouped(runs, "case", "turn", "arm")
    checks = []
    for (name, number, arm), drafted in answers.items():
        if arm != "plain":
            prompt = local.prompt_of(cases[name].chat.turns[number - 1])
            plain, other = (
                [run["tokens"] for run in some] for some in (answers[name, number, "plain"], drafted)
            )
            found = parity(plain, other, partial(_margin, local, prompt))
            checks.append({"case": name, "turn": number, "arm": arm, **found})
    return checks


def _margin(local: LocalEngine, prompt: tuple[int, ...], before: tuple[int, ...]) -> float:
    return local.engine.margin((*prompt, *before))


def samples_of(runs: Sequence[Row], cases: Cases, tokenizer: Tokenizer) -> list[Row]:
    """Return a sample answer per workload and draft type: the first."""
    samples = []
    drafted = (run for run in runs if run["draft_type"] != "none")
    for run, *_ in grouped(drafted, "workload", "draft_type").values():
        turn = cases[run["case"]].chat.turns[run["turn"] - 1]
        said = [(one["role"], one.get("content") or one.get("tool_calls") or "") for one in turn.messages]
        samples.append({
            **{name: run[name] for name in ("workload", "draft_type", "num_draft_tokens", "turn")},
            "prompt": turn.text or "\n\n".join(f"{role}: {content}" for role, content in said),
            "tokens": token_texts(run["tokens"], run["origins"], tokenizer.piece, tokenizer.eos_ids),
        })  # fmt: skip
    return samples


def token_texts(
    tokens: Sequence[int],
    origins: Iterable[tuple[str, int]],
    token_bytes: Callable[[int], bytes],
    eos_ids: Collection[int],
) -> list[list[str]]:
    """Return [text, source] of each token except end tokens.

    A character made of several tokens belongs to the last of them.
    origins: (source, number of tokens) of consecutive tokens.
    """
    sources = [source for source, length in origins for _ in range(length)]
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    return [
        [decoder.decode(token_bytes(token)), source]
        for token, source in zip(tokens, sources, strict=True)
        if token not in eos_ids
    ]
