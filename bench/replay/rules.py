"""Replay known answers: a rule drafts and chooses how much is verified; step costs are summed."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from reprise.bench.cost_curves import FLAT, Curve
from reprise.bench.experiment import Row, grouped
from reprise.bench.replay.pairs import TokenPair
from reprise.bench.replay.suffix_tree import SuffixTree
from reprise.bench.statistics import ratio, ratio_interval
from reprise.config.settings import Settings
from reprise.drafters.assembly import make_drafters
from reprise.drafters.base import (
    NO_DRAFT,
    Draft,
    Drafter,
    DraftQuery,
    IndexesViews,
    SequenceStart,
    SharedTable,
    finish,
)
from reprise.drafters.repetition import score_in_slices
from reprise.drafters.suffix import SuffixDrafter
from reprise.engine.interface.request import DraftType, GenerationRequest, Sampling
from reprise.engine.speculative.acceptance import count_accepted
from reprise.engine.speculative.costs.cost_table import WIDTHS, grid_up_to
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.draft_model.forecast import DraftModelCosts, DraftWork, ShareOfTarget
from reprise.engine.speculative.draft_model.model import MAX_BACKLOG_TOKENS, MAX_FEEDS
from reprise.engine.speculative.gate import LOOKUPS
from reprise.engine.speculative.planner import Planner
from reprise.engine.speculative.proposers import DraftSources, Proposers
from reprise.engine.speculative.sequence_drafts import SequenceDrafts
from reprise.engine.speculative.verify import RowInput

LIMIT = 31
"""Maximum draft length in tokens: with the token before it, a full tile of 32."""


@dataclass
class Outcome:
    """The outcome of replaying one answer.

    cost: sum over all steps. steps: (drafted, accepted) tokens of each forward pass.
    """

    num_tokens: int = 0
    cost: float = 0.0
    steps: list[tuple[int, int]] = field(default_factory=list)

    def verify(self, drafted: Sequence[int], follows: Sequence[int], cost: float) -> int:
        """Count a forward pass over a draft, and return the number of accepted tokens.

        follows: the rest of the answer. cost: of this step.
        """
        num_accepted = count_accepted(drafted, follows)
        self.num_tokens += min(num_accepted + 1, len(follows))
        self.cost += cost
        self.steps.append((len(drafted), num_accepted))
        return num_accepted


def figures(outcomes: Sequence[Outcome]) -> Row:
    """Return the figures of several answers together, as fields of a row.

    coverage: the share of the answers' tokens that were drafted and accepted.
    """
    num_tokens = sum(one.num_tokens for one in outcomes)
    drafted, accepted = ([step[at] for one in outcomes for step in one.steps] for at in (0, 1))
    return {
        "tokens": num_tokens, "speedup": ratio(num_tokens, sum(one.cost for one in outcomes)),
        "tokens_per_forward": ratio(num_tokens, len(drafted)),
        "acceptance": ratio(sum(accepted), sum(drafted)), "coverage": ratio(sum(accepted), num_tokens),
        "acceptance_by_position": [
            ratio(sum(one > at for one in accepted), sum(one > at for one in drafted))
            for at in range(max(drafted, default=0))
        ],
    }  # fmt: skip


class FixedPlayer:
    """Replays answers with one drafter, whose drafts of at most limit tokens are verified in full.

    cost: returns the cost of a step of a width. in_hindsight: verify the number of each draft's tokens with
        the best gain per cost, which needs the answer.
    """

    def __init__(
        self, drafter: Drafter, limit: int, cost: Callable[[int], float], in_hindsight: bool = False
    ) -> None:
        self.drafters, self.limit, self.in_hindsight = [drafter], limit, in_hindsight
        self.costs = [0.0, *map(cost, range(1, limit + 2))]

    def play(self, pair: TokenPair) -> Outcome:
        """Replay one answer, as the engine would: propose, verify, observe, note_verified."""
        (drafter,), costs, outcome = self.drafters, self.costs, Outcome()
        finish(drafter.open(SequenceStart(0, pair.prompt)))
        if isinstance(drafter, IndexesViews):
            for view in pair.views:
                finish(drafter.add_view(0, view))
        while follows := pair.answer[outcome.num_tokens :]:
            drafted = drafter.propose(DraftQuery(0, self.limit)).tokens
            if self.in_hindsight:
                lengths = range(count_accepted(drafted, follows) + 1)
                drafted = drafted[: max(lengths, key=lambda length: (length + 1) / costs[length + 1])]
            num_accepted = outcome.verify(drafted, follows, costs[1 + len(drafted)])
            drafter.observe(0, follows[: num_accepted + 1])
            if drafted:
                drafter.note_verified(0, len(drafted), num_accepted)
        finish(drafter.close(0))
        return outcome


@dataclass(frozen=True, slots=True)
class SimulatedHead:
    """A head that drafts the answer's next tokens, each of them right by chance, wherever a draft begins.

    rate: that chance. token_steps: the cost of a drafted token, in plain steps; feeding the head costs as
        much again, and more if it lacks many tokens.
    """

    rate: float = 0.7
    token_steps: float = 0.05

    def tokens(self, pair: TokenPair) -> list[int]:
        """Return what the head drafts for each place of an answer: the same for all rules."""
        rng = random.Random(len(pair.prompt))
        return [token if rng.random() < self.rate else token + 1 for token in pair.answer]


HEAD = SimulatedHead()


@dataclass(frozen=True, slots=True)
class Setup:
    """The inputs of all replays: a server's settings, the costs of steps, and the tokens that end lines."""

    settings: Settings
    curve: Curve = FLAT
    line_ends: frozenset[int] = frozenset()


class ServerPlayer:
    """Replays answers like a server with one request at a time, with its gate, budget and planner.

    settings: the server's; the setup's are not used. own: drafters that replace the server's of the same
        names. head: the server's, if it has one.
    """

    def __init__(
        self, setup: Setup, settings: Settings, *own: Drafter, head: SimulatedHead | None = None
    ) -> None:
        self.limit = settings.num_draft_tokens
        self.costs = [setup.curve.cost(width) for width in range(self.limit + 2)]
        available = make_drafters(settings, "replay") | {drafter.name: drafter for drafter in own}
        self.drafters = [available[name] for name in LOOKUPS.get(settings.draft_type, ())]
        sources = DraftSources({drafter.name: drafter for drafter in self.drafters}, score_in_slices)
        self.head = head
        self.proposers = Proposers(sources, settings, "mtp" if self.head else None, line_ends=setup.line_ends)
        # Widths that the gate considers besides a draft's own stops: a server's, and 10.
        table = {(1, width): self.costs[width] for width in grid_up_to((*WIDTHS, 10), self.limit + 1)}
        costs, self.head_costs = StepCosts(table, is_learned=False), None
        if self.head:
            prior = ShareOfTarget(costs, self.head.token_steps)
            self.head_costs = DraftModelCosts(prior, costs, is_learned=False)
        self.planner = Planner(costs, model_costs=self.head_costs)

    def play(self, pair: TokenPair) -> Outcome:
        """Replay one answer."""
        outcome, was_plain = Outcome(), False
        # Leave room for a draft beyond the answer: a server does not know where the answer ends.
        max_tokens = len(pair.answer) + self.limit + 1
        request = GenerationRequest("replay", pair.prompt, max_tokens, Sampling(0), views=pair.views)
        drafts = self.proposers.begin(request)
        self.proposers.work.finish()
        by_head = self.head.tokens(pair) if self.head else []
        if self.head:
            # As DraftPrefiller does.
            pays = self.planner.model_pays(self.proposers.new_forecast(), self.limit)
            drafts.uses_model = self.proposers.prompt_gate.should_prefill(pays)
            drafts.forecast.is_ready = drafts.uses_model
        row: Any = SimpleNamespace(
            request=request, tokens=list(pair.prompt), num_answered=0, sampling=0, drafts=drafts
        )
        while follows := pair.answer[outcome.num_tokens :]:
            (feed,) = self.planner.plan([row]) or (None,)
            head_cost = 0.0
            if feed and feed.num_to_draft:
                feed, head_cost = self._ask_head(feed, drafts, by_head[outcome.num_tokens :])
            drafted = feed.draft if feed else ()
            cost = self.costs[1 + len(drafted)] + head_cost
            committed = follows[: outcome.verify(drafted, follows, cost) + 1]
            drafts.slowdown_budget.charge(cost, self.costs[1], len(committed))
            drafts.observe(committed, feed.source if feed else NO_DRAFT, len(drafted))
            # Only the second of two plain steps shows what plain steps cost: see Planner.charge_plain().
            if not drafted and was_plain:
                drafts.slowdown_budget.num_unseen = 0
            was_plain = not drafted
            row.tokens += committed
            row.num_answered = outcome.num_tokens
        drafts.close()
        self.proposers.work.finish()
        return outcome

    def _ask_head(
        self, feed: RowInput, drafts: SequenceDrafts, by_head: Sequence[int]
    ) -> tuple[RowInput, float]:
        """Let the head draft for a step, as HeadDrafter does; return the step's input and the head's cost.

        by_head: what it drafts.
        """
        assert self.head_costs
        lacking = int(drafts.forecast.num_lacking)
        backlog = min(lacking - 1, MAX_FEEDS * MAX_BACKLOG_TOKENS)
        # A head that lacks too much only catches up.
        draft = by_head[: feed.num_to_draft] if backlog == lacking - 1 else ()
        num = len(draft)
        work = DraftWork(1 + backlog, num, [lacking - backlog], [(num, num) if num else None])
        drafts.forecast.note_work(work, 0)
        feed = replace(feed, draft=draft, source=replace(feed.source, tokens=draft))
        return feed, self.head_costs.seconds(1, 1 + backlog, num)


Player = FixedPlayer | ServerPlayer


def play_pair(player: Player, pair: TokenPair) -> Row:
    """Replay one answer; return its workload, chat, kind and outcome."""
    about = {"workload": pair.workload, "chat": pair.chat, "kind": pair.kind}
    return about | {"outcome": player.play(pair)}


def forget(player: Player) -> None:
    """Let drafters forget all earlier chats; the gate keeps what it learned."""
    for drafter in player.drafters:
        if isinstance(drafter, SharedTable | SuffixTree):
            drafter.reset()


def summed(plays: Sequence[Row], *by: str) -> Iterator[Row]:
    """Yield a row of figures for each combination of values of these fields of plays; see play_pair().

    slowest: the lowest speedup of a single answer. low, high: the speedup's 90 % interval over chats.
    """
    for values, alike in grouped(plays, *by).items():
        outcomes = [play["outcome"] for play in alike]
        slowest = min(one.num_tokens / one.cost for one in outcomes)
        chats = [[play["outcome"] for play in one] for one in grouped(alike, "workload", "chat").values()]
        totals = [(sum(one.num_tokens for one in chat), sum(one.cost for one in chat)) for chat in chats]
        low, high = ratio_interval(totals)
        about = dict(zip(by, values, strict=True)) | {"pairs": len(outcomes), "slowest": slowest}
        yield about | {"low": low, "high": high} | figures(outcomes)


@dataclass
class FixedLookup:
    """Drafts the tokens that followed the last n tokens of a sequence where those occurred before.

    longest, shortest: n is the largest number within these bounds with an earlier occurrence.
    newest: whether to use the newest occurrence rather than the earliest. The draft ends where the text ends.
    is_long: draft like llama.cpp's ngram-simple. It drafts nothing shorter than n tokens, and nothing in a
        text of at most n + limit + 2 tokens. The first n-gram never matches, nor does one that ends right
        before the last token, which is never drafted. Source: common/ngram-map.cpp,
        common_ngram_simple_draft.
    """

    longest: int
    shortest: int
    newest: bool = True
    is_long: bool = False
    name: str = "fixed"
    # A character for each token, because Python searches a string faster than an index could be kept.
    texts: dict[int, str] = field(default_factory=dict)

    def open(self, start: SequenceStart) -> None:
        """Keep the sequence's prompt."""
        self.texts[start.seq] = "".join(map(chr, start.prompt))

    def propose(self, query: DraftQuery) -> Draft:
        """Draft the tokens that followed the earlier occurrence."""
        text, margin = self.texts[query.seq], int(self.is_long)
        find = text.rfind if self.newest else text.find
        for size in range(self.longest, self.shortest - 1, -1):
            # The end of the text, which would match itself, is left out.
            start = find(text[-size:], margin, len(text) - 1 - margin)
            if start >= 0:
                tokens = [*map(ord, text[start + size : len(text) - margin][: query.limit])]
                is_too_short = len(tokens) < size or len(text) < size + query.limit + 3
                return NO_DRAFT if self.is_long and is_too_short else Draft(tokens, self.name)
        return NO_DRAFT

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Append committed tokens to the sequence's text."""
        self.texts[seq] += "".join(map(chr, tokens))

    def note_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        """Do nothing: this drafter does not learn."""

    def close(self, seq: int) -> None:
        """Drop the sequence's text."""
        del self.texts[seq]


@dataclass(frozen=True, slots=True)
class Rule:
    """A drafting rule to replay. title: the rule in words, and who uses it.

    draft_type: replayed with a server's gate; None: without a gate, with drafts of at most `limit` tokens.
    drafter: makes the drafter of a rule without a gate. in_hindsight: see FixedPlayer.
    is_warm: whether drafters keep what they learned between chats, in file order.
    head: drafts too, if the draft type uses heads.
    """

    name: str
    title: str
    draft_type: DraftType | None = None
    drafter: Callable[[], Drafter] = SuffixDrafter
    limit: int = LIMIT
    in_hindsight: bool = False
    is_warm: bool = False
    head: SimulatedHead | None = None

    def player(self, setup: Setup) -> Player:
        """Return a player with empty drafters."""
        if self.draft_type:
            settings = replace(setup.settings, draft_type=self.draft_type)
            return ServerPlayer(setup, settings, head=self.head)
        return FixedPlayer(self.drafter(), self.limit, setup.curve.cost, self.in_hindsight)

    def with_heads(self, heads: Sequence[SimulatedHead]) -> "list[Rule]":
        """Return this rule with each of these heads, if it uses one."""
        if not self.head:
            return [self]
        return [replace(self, name=f"{self.name} {head.rate:g}", head=head) for head in heads]


_COLD = (
    Rule("auto", "suffix, then ngram-mod; gate (reprise serve by default)", "auto"),
    Rule("suffix", "longest match, cursor, changes; gate (reprise serve)", "suffix"),
    Rule("ngram-simple", "longest match of 16..2, newest; gate (reprise serve)", "ngram-simple"),
    Rule("ngram-mod", "shared table, n = 16; gate (reprise serve)", "ngram-mod"),
    Rule("newest-2", "newest match of 2, 10 tokens", drafter=lambda: FixedLookup(2, 2), limit=10),
    Rule("newest-3", "newest match of 3, 10 tokens", drafter=lambda: FixedLookup(3, 3), limit=10),
    Rule("earliest-2", "earliest match of 2, else 1; 10 tokens (transformers, prompt_lookup_num_tokens=10)",
         drafter=lambda: FixedLookup(2, 1, newest=False), limit=10),
    Rule("longest-5", "longest match of 5..2, earliest place, 5 tokens (vLLM, prompt_lookup_min=2, _max=5)",
         drafter=lambda: FixedLookup(5, 2, newest=False), limit=5),
    Rule("ngram-12", "newest match of 12, 12 to 48 tokens (llama.cpp's ngram-simple by default)",
         drafter=lambda: FixedLookup(12, 12, is_long=True), limit=48),
    Rule("suffix-tree", "likeliest path of a suffix tree, as long as the match (ArcticInference)",
         drafter=SuffixTree),
    Rule("hindsight", "suffix, with the best width in hindsight", in_hindsight=True),
    Rule("head", "a simulated head", "mtp", head=HEAD),
    Rule("auto-head", "auto with a simulated head; gate (reprise serve)", "auto", head=HEAD),
)  # fmt: skip
_WARM = (
    replace(rule, name=f"{rule.name}-warm", title=f"{rule.title}; keeps what it learned", is_warm=True)
    for rule in _COLD
    if (rule.draft_type and not rule.head) or rule.in_hindsight or rule.drafter is SuffixTree
)

RULES = {rule.name: rule for rule in (*_COLD, *_WARM)}
COMPARED = (*(rule.name for rule in _COLD if not rule.head), "auto-warm")
"""The rules that are replayed by default."""
