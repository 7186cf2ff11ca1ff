"""Answer chats plainly, replay the answers under given settings, and measure some settings on the engine.

Settings are plain data, a point: draft_type, num_draft_tokens, ngram_size, gate and threshold, as far as they
differ from a server's. ngram_size is n of ngram-mod, and the shortest match of ngram-simple.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.decode.answering import PLAIN, Answering, Arm, Case, check
from bench.decode.rows import rows_of
from bench.experiment import Row
from bench.replay.pairs import TokenPair
from bench.replay.policies import Outcome, ServerPlayer, Setup
from bench.workloads import Chat
from config.settings import Settings
from drafters.base import Drafter
from engine.request import DraftChoice

TABLE_ENTRIES = 1 << 20
"""Size of the n-gram tables in replays of single chats: more than they fill, and quick to clear."""

Play = tuple[Row, Outcome]
"""The fields that describe a replayed answer, and what its replay counted."""


@dataclass(frozen=True, slots=True)
class AnsweredChat:
    """A chat and the model's plain answer to each of its turns, except those that do not fit the context."""

    chat: Chat
    pairs: tuple[TokenPair, ...]


def player_at(setup: Setup, point: Row, drafters: Sequence[Drafter] = ()) -> ServerPlayer:
    """Return a server at a point that has learned nothing yet. drafters: used instead of its own."""
    settings = settings_of(point, setup.settings)
    return setup.server(replace(settings, ngram_table_entries=TABLE_ENTRIES), drafters)


def settings_of(point: Row, base: Settings) -> Settings:
    """Return the settings of a server at a point."""
    size, chosen = point.get("ngram_size"), {"draft_type": point["draft_type"]}
    if size and point["draft_type"] == "ngram-simple":
        chosen |= {"ngram_size_min": size, "ngram_size_max": max(base.ngram_size_max, size)}
    elif size:
        chosen["ngram_mod_size"] = size
    names = {"num_draft_tokens": "num_draft_tokens", "gate": "gate", "threshold": "gate_threshold"}
    return replace(base, **chosen, **{to: point[name] for name, to in names.items() if name in point})


def play(player: ServerPlayer, pairs: Iterable[TokenPair], is_cold: bool = True) -> Iterator[Play]:
    """Replay all answers, and yield the workload, the turn and the outcome of those that are measured."""
    for pair, outcome in player.play_all(pairs, is_cold):
        yield {"workload": pair.workload, "turn": pair.turn or 0}, outcome


def summed(plays: Iterable[Play], by: Sequence[str], **about: object) -> Iterator[Row]:
    """Yield a row for each combination of some fields, with the figures of its plays. about: more fields."""
    found: dict[tuple[object, ...], Outcome] = {}
    for row, outcome in plays:
        found.setdefault(tuple(row[name] for name in by), Outcome()).add(outcome)
    for key, outcome in found.items():
        yield {**about, **dict(zip(by, key, strict=True)), **outcome.figures()}


def answer_plainly(answering: Answering, chats: Sequence[Chat]) -> list[AnsweredChat]:
    """Answer every turn plainly. Turns from the first one that does not fit into the context are left out."""
    answered = []
    for number, chat in enumerate(chats):
        pairs: list[TokenPair] = []
        for place, turn in enumerate(chat.turns, 1):
            plainly = DraftChoice("none"), answering.max_tokens, answering.seed
            requests = answering.local.requests([turn], *plainly)
            if not requests:
                break
            answer, name = answering.local.answer(requests)[0].tokens, f"{chat.workload} {number}"
            about = chat.workload, name, place
            pairs.append(TokenPair(requests[0].prompt, answer, *about, is_measured=turn.is_measured))
        answered.append(AnsweredChat(chat, tuple(pairs)))
        answering.work.advance()
    return answered


def measure(
    answering: Answering, answered: Sequence[AnsweredChat], arms: Mapping[str, Arm], repeats: int, what: str
) -> list[Row]:
    """Run chats on the engine, plainly and in other arms; return rows as `reprise bench decode` has them.

    what: is measured, for the progress. No warm-up is needed: the same chats were answered before.
    """
    arms = {"plain": replace(PLAIN, prepare=lambda _: None), **arms}
    cases = {str(at): Case((one.chat,)) for at, one in enumerate(answered)}
    answering.work.stage(f"measuring {what} on the engine", len(cases) * len(arms) * repeats)
    runs = answering.compare(arms, cases, repeats, None)
    return rows_of(runs, check(answering.local, cases, runs), has_turns=True)
