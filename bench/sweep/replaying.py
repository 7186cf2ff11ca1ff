"""Replay known answers with given settings: the server's drafters, gate and slowdown budget, but no model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.cost_curves import Curve
from bench.pairs import TokenPair
from bench.replay.players import ServerPlayer
from bench.replay.policies import Outcome
from config.settings import Settings
from drafters.assembly import make_drafters
from drafters.base import Drafter
from engine.request import DraftType
from engine.speculative.gate import LOOKUPS

TABLE_ENTRIES = 1 << 20
"""Size of the n-gram tables in replays of single chats: more than they fill, and quick to clear."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The common part of all replays of one sweep.

    settings: of the server. curve: step costs. vocabulary: its fingerprint. line_ends: tokens that end a
    line.
    """

    settings: Settings
    curve: Curve
    vocabulary: str = "replay"
    line_ends: frozenset[int] = frozenset()

    def player(
        self, settings: Settings, draft_type: DraftType, drafters: Sequence[Drafter] = ()
    ) -> ServerPlayer:
        """Return a server that has learned nothing yet. drafters: used instead of its own."""
        settings = replace(settings, draft_type=draft_type, ngram_table_entries=TABLE_ENTRIES)
        available = make_drafters(settings, self.vocabulary)
        chosen = drafters or [available[name] for name in LOOKUPS[draft_type]]
        return ServerPlayer(chosen, settings, self.curve, self.line_ends)


def replay_chats(player: ServerPlayer, pairs: Sequence[TokenPair]) -> dict[str, Outcome]:
    """Replay all answers, and return the outcomes of those that are measured, by workload.

    Drafter tables are cleared before each chat. What the gate learned is kept, as on a server.
    """
    outcomes: dict[str, Outcome] = {}
    chat: str | None = None
    for pair in pairs:
        if pair.chat != chat:
            player.forget()
            chat = pair.chat
        outcome = player.play(pair)
        if pair.is_measured:
            outcomes.setdefault(pair.workload, Outcome()).add(outcome)
    return outcomes


def figures(outcome: Outcome) -> dict[str, float | int | None]:
    """Return the figures that rows of a sweep contain. speedup: according to the cost curve."""
    return {
        "tokens": outcome.num_tokens,
        "speedup": outcome.num_tokens / outcome.cost if outcome.cost else None,
        "tokens_per_forward": outcome.num_tokens / outcome.num_forwards if outcome.num_forwards else None,
        "acceptance": outcome.num_accepted / outcome.num_drafted if outcome.num_drafted else None,
        "drafted_share": outcome.num_accepted / outcome.num_tokens if outcome.num_tokens else None,
    }
