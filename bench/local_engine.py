"""An engine in this process, without HTTP, that answers chats' turns; and its step costs here."""

import logging
import queue
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from time import perf_counter
from typing import Any, Self

import mlx.core as mx

from reprise.bench.experiment import ArgumentsError
from reprise.bench.workloads import Turn
from reprise.bench.workloads.chats import render, render_turn, views_of
from reprise.config.settings import Settings
from reprise.drafters.assembly import make_drafters
from reprise.drafters.base import Drafter
from reprise.drafters.repetition import score_in_slices
from reprise.engine.distributed import follow
from reprise.engine.distributed.rank_0 import Ranks
from reprise.engine.distributed.ranks import Place, read_place
from reprise.engine.engine import Engine
from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.events import Delta, Event, Failed, Finished
from reprise.engine.interface.models import StartProgress
from reprise.engine.interface.request import DraftChoice, GenerationRequest, Grammar, Sampling
from reprise.engine.kv_cache.per_row import cache_arrays, make_caches
from reprise.engine.kv_cache.rows import Rows, make_rows
from reprise.engine.pool.residency import Makers
from reprise.engine.speculative.costs.cost_table import WIDTHS, grid_up_to
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.proposers import DraftSources
from reprise.server.prompt.views import ViewMaker

Tokens = tuple[int, ...]
VIEW_BYTES = 1 << 26
FORBID = -1e9
FORCE, EVEN_OUT = 1e6, 1e4
"""The bias of the only allowed tokens, and a temperature that makes the model's own logits negligible."""

CONTEXT_TOKENS = 16

ROUNDS, LONG_ROUNDS, LONG_S = 5, 2, 0.1
"""Times that each width is measured, and one whose steps take this many seconds; the fastest counts."""

PLAIN_STEPS = 4
"""Plain steps in a measurement of width 1: each is dispatched before the one before it is fetched."""

TOKEN_STRIDE = 7919
"""Distance of consecutive tokens in the vocabulary: a mixture of experts computes more for different ones."""


def equal_costs(*widths: int) -> StepCosts:
    """Return costs under which steps of these widths cost as much as plain steps, so every draft pays."""
    return StepCosts({(1, width): 1.0 for width in (1, *widths)}, is_learned=False)


def forced_costs(max_drafted: int) -> StepCosts:
    """Return costs under which the longest draft is always the best choice.

    A step of width w seems to cost 1/w of a plain step. Then even rejected drafts pay, the slowdown budget is
    never exceeded, and a draft model's own steps cost next to nothing.
    """
    return StepCosts({(1, width): 1000.0 / width for width in range(1, max_drafted + 2)}, is_learned=False)


class LocalEngine:
    """An engine that runs while the context is open.

    costs: step costs to use instead of learning them. on_progress: called with the progress of the start.
    drafters: by name, once the engine runs; they may be replaced while no request runs.

    Where mlx.launch has started several processes, they share the model, and only rank 0 gets an engine: the
    others follow it until they exit.
    """

    def __init__(
        self, settings: Settings, costs: StepCosts | None = None, on_progress: StartProgress | None = None
    ) -> None:
        self._on_progress, self._given_costs = on_progress, costs
        self.drafters: dict[str, Drafter] = {}
        self._ranks = _join(place, settings) if (place := read_place()) else None
        self.engine = Engine(
            settings,
            Makers(
                make_sources=partial(self._sources, settings), costs=costs, waits_for_trials=True,
                ranks=self._ranks,
            ),
        )  # fmt: skip
        self._view_maker = ViewMaker(self.engine, VIEW_BYTES)

    def __enter__(self) -> Self:
        try:
            self.engine.start(self._on_progress)
        except ModelError as fault:
            if self._ranks:
                self._ranks.release(1)
            raise ArgumentsError(str(fault)) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.engine.stop(drain_s=0)
        if self._ranks:
            self._ranks.release(0 if kind is None else 1)

    def _sources(self, settings: Settings, vocabulary: str) -> DraftSources:
        self.drafters.update(make_drafters(settings, vocabulary))
        return DraftSources(self.drafters, score_in_slices)

    @cached_property
    def step_costs(self) -> StepCosts | None:
        """Step costs here, timed at the first call; None if the engine was given costs to use."""
        return time_steps(self.engine) if self._given_costs is None else None

    def prompt_of(self, turn: Turn) -> Tokens:
        """Return the token ids of a turn's prompt."""
        return render_turn(self.engine.tokenizer, turn)

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a prompt whose only message is this text."""
        return len(render(self.engine.tokenizer, text))

    def requests(
        self, turns: Sequence[Turn], draft: DraftChoice, max_tokens: int, seed: int, prediction: Tokens = ()
    ) -> list[GenerationRequest]:
        """Return a request for each of several concurrent turns; [] if a prompt leaves no room for an answer.

        max_tokens: maximum answer length; a turn's own limit applies if it is lower.
        """
        info, eos_ids = self.engine.info, self.engine.tokenizer.eos_ids
        prompts = [self.prompt_of(turn) for turn in turns]
        if max(map(len, prompts)) >= info.context_tokens:
            return []
        made = []
        for at, (turn, prompt) in enumerate(zip(turns, prompts, strict=True)):
            bias = [(token, FORBID) for token in eos_ids if turn.is_endless]
            bias += [(info.vocab_size // 2 + number, FORCE) for number in range(turn.num_allowed)]
            temperature = EVEN_OUT if turn.num_allowed else turn.temperature
            length = min(turn.max_tokens or max_tokens, max_tokens, info.context_tokens - len(prompt))
            made.append(GenerationRequest(
                f"bench-{at}", prompt, length,
                Sampling(seed + at, temperature=temperature, logit_bias=tuple(bias)), draft=draft,
                prediction=prediction, views=views_of(self._view_maker, turn),
                grammar=Grammar("json_schema", turn.schema) if turn.schema else None,
            ))  # fmt: skip
        return made

    def answer(
        self, requests: Sequence[GenerationRequest], on_delta: Callable[[Delta], None] = lambda _: None
    ) -> list[Finished]:
        """Answer requests at once, and return when all have finished. Raises RuntimeError if a request fails.

        on_delta: called on the engine's thread with an answer's further tokens, or its prompt's progress.
        """
        ended: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()

        def listen(event: Event, at: int) -> None:
            if isinstance(event, Delta):
                on_delta(event)
            else:
                ended.put((at, event))

        for at, request in enumerate(requests):
            self.engine.submit(request, partial(listen, at=at))
        ends = dict(ended.get() for _ in requests)
        for end in ends.values():
            if not isinstance(end, Finished):
                raise RuntimeError(f"a request failed: {end.message if isinstance(end, Failed) else end}")
        return [ends[at] for at in range(len(requests))]


def _join(place: Place, settings: Settings) -> Ranks:
    """Return the ranks of a model, on rank 0; other ranks follow it until this process ends."""
    # Shows which machine the start waits for.
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if place.rank:
        follow.run(place, settings)
    return Ranks(place, settings)


def time_steps(engine: Engine) -> StepCosts:
    """Time steps of one row, of each width that the engine's drafts may have. The engine must be idle."""
    of_model, settings = engine.first_engine, engine.settings

    def measure() -> StepCosts:
        loaded = of_model.loaded
        sharing = loaded.find_sharing(settings.kv_bits)
        may_draft = loaded.rollback_fault(settings.kv_bits, sharing) is None
        widths = grid_up_to(WIDTHS, settings.num_draft_tokens + 1) if may_draft else [1]
        rows, caches = make_rows(loaded.model, sharing), make_caches(loaded.model, settings.kv_bits)
        size = loaded.info.vocab_size
        loaded.model(mx.array([_tokens(CONTEXT_TOKENS, size)]), cache=caches)
        mx.eval(cache_arrays(caches))
        rows.add(caches, CONTEXT_TOKENS)
        found: dict[tuple[int, int], float] = {}
        for number in range(ROUNDS):
            for width in widths:
                if number < LONG_ROUNDS or found[1, width] < LONG_S:
                    taken_s = _plain_step_s(rows, size) if width == 1 else _wide_step_s(rows, width, size)
                    found[1, width] = min(taken_s, found.get((1, width), taken_s))
        return StepCosts(found, is_learned=False)

    costs: StepCosts = of_model.between_steps(measure)
    return costs


def _tokens(count: int, vocab_size: int) -> list[int]:
    return [(TOKEN_STRIDE * at + 3) % vocab_size for at in range(count)]


def _plain_step_s(rows: Rows, vocab_size: int) -> float:
    fed = mx.array(_tokens(PLAIN_STEPS, vocab_size), mx.int32)
    newest = mx.zeros(1, mx.int32)
    mx.eval(fed, newest)
    start = perf_counter()
    for at in range(PLAIN_STEPS):
        previous = newest
        # A step waits for the token of the one before, but is fed another.
        tokens = mx.where(previous < 0, previous, fed[at])
        newest = mx.argmax(rows.forward(tokens[:, None])[:, -1], axis=-1).astype(mx.int32)
        mx.async_eval(newest)
        previous.tolist()
    newest.tolist()
    return (perf_counter() - start) / PLAIN_STEPS


def _wide_step_s(rows: Rows, width: int, vocab_size: int) -> float:
    held, start = rows.lengths[0], perf_counter()
    mx.argmax(rows.forward_ragged([_tokens(width, vocab_size)]), axis=-1).tolist()
    rows.roll_back(0, held + 1)
    return perf_counter() - start
