"""Run chats on the engine: plain answers to replay, and measurements of a few settings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.local_engine import LocalEngine
from bench.pairs import TokenPair
from bench.turn_requests import request_of
from bench.workloads import Chat, Turn
from engine.request import DraftChoice, Finished

PLAIN = DraftChoice("none")

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

    name: str
    prepare: Callable[[LocalEngine], None]
    draft: DraftChoice


@dataclass
class Measured:
    """Time and counts of answers from the engine.

    decode_s: after prefill. is_equal: whether the answers equal the plain ones, token by token.
    """

    num_tokens: int = 0
    num_forwards: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    decode_s: float = 0.0
    is_equal: bool = True

    def add(self, other: "Measured") -> None:
        """Add the counts of other answers."""
        self.num_tokens += other.num_tokens
        self.num_forwards += other.num_forwards
        self.num_drafted += other.num_drafted
        self.num_accepted += other.num_accepted
        self.decode_s += other.decode_s
        self.is_equal &= other.is_equal

    @property
    def tokens_per_s(self) -> float:
        """Decode speed, without prefill."""
        return self.num_tokens / self.decode_s


def answer_plainly(
    local: LocalEngine,
    chats: Sequence[Chat],
    max_tokens: int,
    seed: int,
    advance: Advance,
    has_references: bool = False,
) -> list[AnsweredChat]:
    """Answer every turn plainly. Turns from the first one that does not fit into the context are left out.

    has_references: use the right answer, where there is one, instead of the model's.
    """
    answered = []
    for number, chat in enumerate(chats):
        pairs: list[TokenPair] = []
        for turn in chat.turns:
            request = request_of(local, turn, max_tokens, seed, PLAIN)
            if request is None:
                break
            if has_references and turn.reference:
                answer = tuple(local.engine.tokenizer.encode_answer(turn.reference))[: request.max_tokens]
            else:
                answer = local.answer([request])[0].tokens
            name, place = f"{chat.workload} {number}", len(pairs) + 1
            pairs.append(
                TokenPair(request.prompt, answer, chat.workload, name, place, is_measured=turn.is_measured)
            )
        answered.append(AnsweredChat(chat, tuple(pairs)))
        advance()
    return answered


def measure(
    local: LocalEngine,
    answered: AnsweredChat,
    variants: Sequence[Variant],
    max_tokens: int,
    repeats: int,
    seed: int,
) -> Mapping[str, list[Measured]]:
    """Answer a chat in each variant, alternating; return by variant the fastest repeat of each turn.

    No warm-up is needed: the same chats were answered plainly before.
    """
    best: dict[str, list[Measured]] = {}
    for _ in range(repeats):
        for variant in variants:
            variant.prepare(local)
            runs = [
                _run(local, turn, pair, variant.draft, max_tokens, seed)
                for turn, pair in zip(answered.chat.turns, answered.pairs, strict=False)
            ]
            pairs = zip(best.get(variant.name, runs), runs, strict=True)
            best[variant.name] = [min(pair, key=lambda one: one.decode_s) for pair in pairs]
    return best


def _run(
    local: LocalEngine, turn: Turn, pair: TokenPair, draft: DraftChoice, max_tokens: int, seed: int
) -> Measured:
    request = request_of(local, turn, max_tokens, seed, draft)
    assert request is not None, "this turn was answered before, so it has room"
    (end,) = local.answer([request])
    return _measured(end, pair)


def _measured(end: Finished, plain: TokenPair) -> Measured:
    usage, report = end.usage, end.usage.drafting
    return Measured(
        num_tokens=len(end.tokens),
        num_forwards=report.num_forwards or len(end.tokens),
        num_drafted=report.num_drafted,
        num_accepted=report.num_accepted,
        decode_s=usage.total_s - usage.prefill_s,
        is_equal=end.tokens == plain.answer,
    )
