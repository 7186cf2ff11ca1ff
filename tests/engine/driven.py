"""A worker without its thread: tests turn it by hand, and see what stands where between two turns."""

import functools
from collections.abc import Callable
from typing import Any

from config.settings import Settings
from engine.model.loading import LoadedModel
from engine.request import GenerationRequest
from engine.sampling.grammar import Grammars
from engine.sequence import Sequence
from engine.setup import MakeSources, flat_costs, make_worker
from tests.engine.support import Answer, make_loaded, oracle

MAX_STEPS = 20_000


@functools.cache
def loaded_once(name: str) -> LoadedModel:
    """A random model of that architecture, made once for all tests."""
    return make_loaded(name)


@functools.cache
def expected_tokens(name: str, request: GenerationRequest) -> list[int]:
    """The answer's tokens by the plain loop, computed once."""
    return oracle(loaded_once(name), request)


class Driven:
    """A worker, and the answers to what it was asked, by the requests' ids."""

    def __init__(
        self,
        loaded: LoadedModel,
        make_sources: MakeSources | None = None,
        draft: LoadedModel | None = None,
        **settings: Any,
    ) -> None:
        self.loaded = loaded
        self.grammars = Grammars(loaded.tokenizer)
        self.worker = make_worker(
            loaded, Settings(**settings), make_sources, draft, flat_costs(), lambda _what, _share: None
        )
        self.answers: dict[str, Answer] = {}

    def ask(self, request: GenerationRequest) -> Answer:
        """Submit a request."""
        answer = self.answers[request.id] = Answer()
        self.worker.submit(Sequence.of(request, answer, self.loaded.tokenizer, self.grammars))
        return answer

    def step_until(self, is_so: Callable[[], bool]) -> None:
        """Turn until the claim holds. Fails if it never does."""
        for _ in range(MAX_STEPS):
            if is_so():
                return
            self.worker.step()
        raise AssertionError("it never came true")

    def finish(self) -> None:
        """Turn until there is nothing to do."""
        self.step_until(lambda: not self.worker.has_work)
