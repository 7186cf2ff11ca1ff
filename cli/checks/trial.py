"""What only MLX can tell, in a process of its own: what it computes on, and whether a model answers.

A fault in MLX or in a driver may end the process, which is then one of the things that are found.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import TimeoutError as OutOfTime
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import Any, ParamSpec, TypeVar

from config.settings import Settings

QUESTION = "Who are you?"
MAX_TOKENS = 24

LIMIT_S = 120
"""Seconds after which a process that says nothing is given up. The bundled model takes a few."""

_Result = TypeVar("_Result")
_Given = ParamSpec("_Given")


class TrialError(Exception):
    """The process has ended, says nothing, or raised something; the message is one line."""


@dataclass(frozen=True)
class Device:
    """What MLX computes on. working_set_bytes: what Metal recommends to wire at most; None without Metal."""

    name: str
    usable_bytes: int
    working_set_bytes: int | None


@dataclass(frozen=True)
class Answer:
    """A sentence that a model wrote. is_equal: whether drafts left its tokens alone.

    model, cost_curve: as in result documents; the curve is empty if costs were not measured.
    """

    text: str
    num_tokens: int
    load_s: float
    tokens_per_s: float
    is_equal: bool
    model: dict[str, Any]
    cost_curve: list[dict[str, float]]


class Trial:
    """A process in which functions run one after the other."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def call(
        self, function: Callable[_Given, _Result], *given: _Given.args, **named: _Given.kwargs
    ) -> _Result:
        """Return what the function returns in the process. Raises TrialError."""
        try:
            return self._pool.submit(function, *given, **named).result(LIMIT_S)
        except OutOfTime as fault:
            self.kill()
            raise TrialError(f"nothing came within {LIMIT_S} seconds") from fault
        except BrokenProcessPool as fault:
            raise TrialError(
                "the process ended without a word, as after a fault in MLX or a driver"
            ) from fault
        except Exception as fault:
            is_known = type(fault).__name__ in ("ArgumentsError", "ModelError")
            text = str(fault) if is_known else f"{type(fault).__name__}: {fault}"
            raise TrialError(text.splitlines()[0]) from fault

    def kill(self) -> None:
        """End the process."""
        for process in (self._pool._processes or {}).values():
            process.kill()


@contextmanager
def trial() -> Iterator[Trial]:
    """Start a process for a trial, and end it at the end."""
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    try:
        yield Trial(pool)
    finally:
        pool.shutdown(cancel_futures=True)


def find_device() -> Device:
    """Return what MLX computes on here."""
    from engine.model.loading import device_name
    from engine.scheduler.machine_memory import usable_bytes, working_set_bytes

    return Device(device_name(), usable_bytes(), working_set_bytes())


def inspect(source: str) -> dict[str, Any]:
    """Return what `reprise info --json` says of a model's folder. Raises ModelError."""
    from engine.checkpoint import inspect_checkpoint

    return asdict(inspect_checkpoint(source))


def answer(settings: Settings, measures_costs: bool) -> Answer:
    """Load the model and let it answer once plainly and once with drafts. Writes nothing to disk.

    measures_costs: also measure what steps cost, which takes some seconds more.
    """
    from bench.document import new_document
    from bench.local_engine import LocalEngine
    from bench.workloads.chats import render
    from engine.request import DraftChoice, GenerationRequest, Sampling
    from engine.speculative.costs.step_costs import StepCosts

    settings = replace(
        settings, calibration_file=None, ngram_table_file=None, prefix_cache_dir=None, record=None
    )
    # By these costs every draft is worth verifying, so that verification is tried too.
    flat = StepCosts({(1, 1): 1.0, (1, 32): 1.0}, is_learned=False)
    with LocalEngine(settings, None if measures_costs else flat) as local:
        prompt = render(local.engine.tokenizer, QUESTION)
        requests = [
            GenerationRequest(
                f"doctor-{choice.type}", prompt, MAX_TOKENS, Sampling(0, temperature=0), draft=choice
            )
            for choice in (DraftChoice("none"), DraftChoice())
        ]
        plain, drafted = (local.answer([request])[0] for request in requests)
        costs = local.engine.costs if measures_costs else None
        known = new_document(Namespace(), local.engine.info, costs)
        return Answer(
            local.engine.tokenizer.decode(plain.tokens), len(plain.tokens), local.engine.info.loaded_s,
            plain.usage.decode_tokens_per_s, plain.tokens == drafted.tokens,
            known["model"], known["cost_curve"],
        )  # fmt: skip
