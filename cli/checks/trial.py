"""Try MLX in a process of its own: which device it computes on, and whether a model answers.

A fault in MLX or in a driver may end the process, which is then one of the things that are found.
"""

import itertools
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.queues import Queue
from time import monotonic
from typing import Any, ParamSpec, TypeVar

from reprise.config.settings import Settings

QUESTION = "Who are you?"
MAX_TOKENS = 24

LIMIT_S, TICK_S = 300.0, 0.2
"""Seconds after which a process that says nothing is given up, however long it takes in all, and seconds
between two looks at what it has said. It speaks before each trial of the model and with each token."""

Show = Callable[[str, float], None]
"""Called with what is done now, and the share of it that is over."""

_Result = TypeVar("_Result")
_Given = ParamSpec("_Given")


class TrialError(Exception):
    """The trial's process has ended or fallen silent, or a function has raised; the message is one line."""


@dataclass(frozen=True)
class Device:
    """The device that MLX computes on. working_set_bytes: Metal's recommended limit; None without Metal."""

    name: str
    usable_bytes: int
    working_set_bytes: int | None


@dataclass(frozen=True)
class Answer:
    """A model's answer to the trial's question. is_equal: whether the answer with drafts has equal tokens.

    model, cost_curve: as in result documents; the curve is empty if it was not measured.
    """

    text: str
    num_tokens: int
    load_s: float
    tokens_per_s: float
    is_equal: bool
    model: dict[str, Any]
    cost_curve: list[dict[str, float]]


class Trial:
    """A process in which functions run one after the other.

    said: the (stage, share) pairs that these functions report with say().
    """

    def __init__(self, pool: ProcessPoolExecutor, said: "Queue[tuple[str, float]]") -> None:
        self._pool = pool
        self._said = said
        self.show: Show = lambda _stage, _share: None

    def call(
        self, function: Callable[_Given, _Result], *given: _Given.args, **named: _Given.kwargs
    ) -> _Result:
        """Run a function in the trial's process, and return its result. Raises TrialError."""
        try:
            future = self._pool.submit(_outcome, partial(function, *given, **named))
            heard_at = monotonic()
            while not wait([future], TICK_S).done:
                while not self._said.empty():
                    heard_at = monotonic()
                    self.show(*self._said.get())
                if monotonic() - heard_at > LIMIT_S:
                    self.kill()
                    raise TrialError(f"nothing came within {LIMIT_S:g} seconds")
            result, told = future.result()
        except BrokenProcessPool as fault:
            raise TrialError(
                "the process ended without a word, as after a fault in MLX or a driver"
            ) from fault
        if told is not None:
            raise TrialError(told)
        returned: _Result = result
        return returned

    def kill(self) -> None:
        """End the process."""
        for process in (self._pool._processes or {}).values():
            process.kill()


@contextmanager
def trial() -> Iterator[Trial]:
    """Start a process for a trial, and end it when the context ends."""
    context = get_context("spawn")
    said: Queue[tuple[str, float]] = context.Queue()
    pool = ProcessPoolExecutor(1, context, _say_to, (said,))
    try:
        yield Trial(pool, said)
    finally:
        pool.shutdown(cancel_futures=True)


def _outcome(function: Callable[[], _Result]) -> tuple[Any, str | None]:
    """Return a function's result, and its exception as one line.

    Not the exception: reading one of the engine's would import MLX into the process that waits, on a thread,
    and then that process may abort when it exits.
    """
    try:
        return function(), None
    except Exception as fault:  # noqa: BLE001 - told to the process that waits
        is_known = type(fault).__name__ in ("ArgumentsError", "ModelError")
        text = str(fault) if is_known else f"{type(fault).__name__}: {fault}"
        return None, text.splitlines()[0]


_said: list["Queue[tuple[str, float]]"] = []
"""Where this process says how far it is, if it is one for a trial."""


def _say_to(said: "Queue[tuple[str, float]]") -> None:
    _said.append(said)


def say(stage: str, share: float) -> None:
    """Tell the waiting process the stage of the work, and the share of the stage that is done."""
    for said in _said:
        said.put((stage, share))


def find_device() -> Device:
    """Return the device that MLX computes on here."""
    from reprise.engine.model.device import device_name, usable_bytes, working_set_bytes

    return Device(device_name(), usable_bytes(), working_set_bytes())


def choose_first(settings: Settings) -> Settings:
    """Return settings with the model that a server would start with; see engine/pool/catalogue.py."""
    from reprise.engine.pool.catalogue import choose_first

    return choose_first(settings)


def inspect(source: str) -> dict[str, Any]:
    """Return the facts of `reprise info --json` about a model's folder. Raises ModelError."""
    from reprise.engine.checkpoint import inspect_checkpoint

    return asdict(inspect_checkpoint(source))


def answer(settings: Settings, measures_costs: bool) -> Answer:
    """Load the model and let it answer once plainly and once with drafts. Writes nothing to disk.

    measures_costs: also measure the costs of steps, which takes some seconds more.
    """
    from reprise.bench.document import new_document
    from reprise.bench.local_engine import LocalEngine
    from reprise.bench.workloads.chats import render
    from reprise.engine.interface.request import DraftChoice, GenerationRequest, Sampling
    from reprise.engine.speculative.costs.step_costs import StepCosts

    settings = replace(settings, costs_file=None, ngram_table_file=None, prefix_cache_dir=None, record=None)
    # By these costs every draft is worth verifying, so that verification is tried too.
    flat = StepCosts({(1, 1): 1.0, (1, 32): 1.0}, is_learned=False)
    with LocalEngine(settings, None if measures_costs else flat, say) as local:
        prompt = render(local.engine.tokenizer, QUESTION)
        requests = [
            GenerationRequest(
                f"doctor-{choice.type}", prompt, MAX_TOKENS, Sampling(0, temperature=0), draft=choice
            )
            for choice in (DraftChoice("none"), DraftChoice())
        ]
        num_said = itertools.count(1)
        plain, drafted = (
            local.answer([request], lambda: say("Answering", next(num_said) / (2 * MAX_TOKENS)))[0]
            for request in requests
        )
        known = new_document(Namespace(), local.engine.info, local.step_costs)
        return Answer(
            local.engine.tokenizer.decode(plain.tokens), len(plain.tokens), local.engine.info.loaded_s,
            plain.usage.decode_tokens_per_s, plain.tokens == drafted.tokens,
            known["model"], known["cost_curve"],
        )  # fmt: skip
