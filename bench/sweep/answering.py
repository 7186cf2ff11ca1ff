"""Run chats on the engine: plain answers to replay, and measurements of a few settings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from bench.decode.answering import Answering
from bench.experiment import Experiment, Row, measured
from bench.local_engine import LocalEngine
from bench.pairs import TokenPair
from bench.workloads import Chat
from engine.request import DraftChoice, DraftType

Advance = Callable[[], None]
"""Called after each unit of work."""


@dataclass(frozen=True, slots=True)
class AnsweredChat:
    """A chat and the model's plain answer to each of its turns.

    pairs: of the turns, in order; fewer than turns if a prompt left no room in the context.
    """

    chat: Chat
    pairs: tuple[TokenPair, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """How to answer the chats. prepare: called with the engine before each chat."""

    prepare: Callable[[LocalEngine], None]
    draft_type: DraftType
    num_draft_tokens: int | None = None


def answer_plainly(
    answering: Answering, chats: Sequence[Chat], advance: Advance, has_references: bool = False
) -> list[AnsweredChat]:
    """Answer every turn plainly. Turns from the first one that does not fit into the context are left out.

    has_references: use the right answer, where there is one, instead of the model's.
    """
    local, answered = answering.local, []
    for number, chat in enumerate(chats):
        pairs: list[TokenPair] = []
        for turn in chat.turns:
            requests = local.requests([turn], DraftChoice("none"), answering.max_tokens, answering.seed)
            if not requests:
                break
            if has_references and turn.reference:
                answer = tuple(local.engine.tokenizer.encode_answer(turn.reference))[: requests[0].max_tokens]
            else:
                answer = local.answer(requests)[0].tokens
            name, place = f"{chat.workload} {number}", len(pairs) + 1
            prompt = requests[0].prompt
            pairs.append(TokenPair(prompt, answer, chat.workload, name, place, is_measured=turn.is_measured))
        answered.append(AnsweredChat(chat, tuple(pairs)))
        advance()
    return answered


def measure(
    answering: Answering,
    answered: Sequence[AnsweredChat],
    variants: Mapping[str, Variant],
    repeats: int,
    advance: Advance,
) -> list[Row]:
    """Answer chats in each variant, alternating; return a row per arm, chat and turn: of the fastest repeat.

    workload: of the chat. is_equal: whether all repeats equal the plain answer, token by token.
    No warm-up is needed: the same chats were answered plainly before.
    """

    def run(variant: Variant, chat: Chat) -> list[Row]:
        variant.prepare(answering.local)
        return answering.run([chat], variant.draft_type, variant.num_draft_tokens, keeps_tables=True)

    rows = []
    for at, one in enumerate(answered):
        arms = {name: partial(run, variant) for name, variant in variants.items()}
        experiment = Experiment(arms, {str(at): one.chat}, repeats, has_warm_up=lambda _: False)
        runs = measured(experiment.run())
        for arm, turn in dict.fromkeys((run["arm"], run["turn"]) for run in runs):
            same = [run for run in runs if (run["arm"], run["turn"]) == (arm, turn)]
            answer = list(one.pairs[turn - 1].answer)
            is_equal = all(run["tokens"][0] == answer for run in same)
            best = min(same, key=lambda run: run["decode_s"])
            rows.append(best | {"workload": one.chat.workload, "is_equal": is_equal})
        advance()
    return rows


def speed_of(rows: Sequence[Row]) -> float:
    """Return the decode speed over these rows, in tokens per second."""
    return float(sum(row["num_tokens"] for row in rows) / sum(row["decode_s"] for row in rows))
