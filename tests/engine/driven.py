"""A worker without its thread: tests run it step by step and inspect it between steps."""

import functools
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from reprise.config.settings import Settings
from reprise.engine.batch.sequence import Sequence
from reprise.engine.generating.setup import flat_costs, make_worker
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.memory import prefill_plan
from reprise.engine.memory.prefill_plan import MAX_STALL_MS
from reprise.engine.model.loading import LoadedModel
from reprise.engine.pool.residency import FindHead, Makers
from reprise.engine.sampling.grammar import Grammars
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.proposers import MakeSources
from tests.engine.support import Answer, make_loaded, oracle

MAX_STEPS = 20_000


@functools.cache
def loaded_once(name: str) -> LoadedModel:
    """Return a random model of that architecture, made once for all tests."""
    return make_loaded(name)


@functools.cache
def expected_tokens(name: str, request: GenerationRequest) -> list[int]:
    """Return the answer's tokens by the plain loop, computed once for all tests."""
    return oracle(loaded_once(name), request)


class Driven:
    """A worker that tests step by hand. answers: by request id."""

    def __init__(
        self,
        loaded: LoadedModel,
        make_sources: MakeSources | None = None,
        draft: LoadedModel | None = None,
        find_head: FindHead | None = None,
        costs: StepCosts | None = None,
        max_stall_ms: float = MAX_STALL_MS,
        **settings: Any,
    ) -> None:
        self.loaded = loaded
        self.grammars = Grammars(loaded.tokenizer)
        with patch.object(prefill_plan, "MAX_STALL_MS", max_stall_ms):
            self.worker = make_worker(
                loaded,
                draft,
                Settings(**settings),
                Makers(make_sources=make_sources, find_head=find_head, costs=costs or flat_costs()),
                lambda _what, _share: None,
            )
        self.answers: dict[str, Answer] = {}

    def ask(self, request: GenerationRequest) -> Answer:
        """Submit a request; return the Answer that collects its events."""
        answer = self.answers[request.id] = Answer()
        self.worker.submit(Sequence.of(request, answer, self.loaded.tokenizer, self.grammars))
        return answer

    def step_until(self, condition: Callable[[], bool]) -> None:
        """Run steps until the condition is true. Fails after MAX_STEPS."""
        for _ in range(MAX_STEPS):
            if condition():
                return
            self.worker.step()
        raise AssertionError(f"the condition did not become true within {MAX_STEPS} steps")

    def finish(self) -> None:
        """Run steps until there is no work left."""
        self.step_until(lambda: not self.worker.has_work)
