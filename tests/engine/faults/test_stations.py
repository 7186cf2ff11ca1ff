"""A fault at any station of a request fails at most one request, and the others do not notice."""

import inspect
import threading
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from typing import Any

import pytest

from reprise.drafters.base import Draft, DraftQuery
from reprise.engine.batch.batch import Device
from reprise.engine.batch.sequence import Sequence
from reprise.engine.engine import Engine
from reprise.engine.generating.worker import Worker
from reprise.engine.interface.errors import EngineError
from reprise.engine.interface.events import Event, Failed, Finished
from reprise.engine.interface.request import DraftChoice, GenerationRequest
from reprise.engine.kv_cache.batched_rows import BatchedRows
from reprise.engine.kv_cache.prefix_cache.trie import PrefixCache
from reprise.engine.kv_cache.rows import SeparateRows
from reprise.engine.memory import prefill_plan
from reprise.engine.memory.budget import MemoryBudget
from reprise.engine.sampling.sampler import Sampler
from reprise.engine.scheduler.prefixes import Prefixes
from reprise.engine.scheduler.request_queue import RequestQueue
from reprise.engine.speculative import verify
from reprise.engine.speculative.costs.slowdown_budget import SlowdownBudget
from reprise.engine.speculative.planner import Planner
from reprise.engine.speculative.proposers import DraftSources, Proposers
from reprise.engine.speculative.sequence_drafts import SequenceDrafts
from reprise.engine.text.detokenizer import Detokenizer
from tests.drafters.fakes import Coin, scored
from tests.engine.conftest import StartEngine
from tests.engine.driven import expected_tokens, loaded_once
from tests.engine.support import Answer, ask, prompt_of, request, wait_until

EVERYWHERE: dict[str, tuple[Any, str]] = {
    "take": (Sequence, "of"),
    "queue": (Worker, "submit"),
    "drop": (RequestQueue, "drop_ended"),
    "admit": (RequestQueue, "admit"),
    "await a prefill": (Prefixes, "awaits"),
    "look a prefix up": (Prefixes, "find"),
    "may it begin": (MemoryBudget, "may_begin"),
    "make room": (MemoryBudget, "make_room"),
    "share the budget": (prefill_plan, "plan_prefill"),
    "begin to draft": (Proposers, "begin"),
    "plan": (Planner, "plan"),
    "propose": (SequenceDrafts, "propose"),
    "sample": (Sampler, "sample"),
    "verification step": (verify, "feed_drafts"),
    "charge": (SlowdownBudget, "charge"),
    "clock": (Device, "lap"),
    "commit": (Sequence, "commit"),
    "detokenize": (Detokenizer, "add"),
    "last characters": (Detokenizer, "finish"),
    "observe": (SequenceDrafts, "observe"),
    "usage": (Sequence, "usage"),
    "keep a row": (Prefixes, "keep_row"),
    "find a prefix": (PrefixCache, "find"),
    "keep a prefix": (PrefixCache, "put"),
}
OF_ROWS = {"join": "add", "dispatch": "forward", "verify": "forward_ragged", "roll back": "roll_back",
           "retire": "remove"}  # fmt: skip
STATIONS = {
    **{f"{name} [llama]": ("llama", *at) for name, at in EVERYWHERE.items()},
    **{f"{name} [llama]": ("llama", BatchedRows, at) for name, at in OF_ROWS.items()},
    **{f"{name} [lfm2]": ("lfm2", BatchedRows, at) for name, at in OF_ROWS.items()},
    **{f"{name} [baichuan]": ("baichuan_m1", SeparateRows, at) for name, at in OF_ROWS.items()},
}
HARMLESS = {"plan", "propose", "verification step", "keep a row", "keep a prefix", "find a prefix"}
"""Stations where a fault fails no request, because an answer does not need them."""


class Fault:
    """Makes a function raise on its next num_left calls."""

    def __init__(
        self, patch: pytest.MonkeyPatch, owner: Any, name: str, kind: type[BaseException] = RuntimeError
    ) -> None:
        self.num_left = self.num_raised = 0
        original = getattr(owner, name)

        def broken(*args: Any, **named: Any) -> Any:
            if self.num_left:
                self.num_left -= 1
                self.num_raised += 1
                raise kind(f"a fault in {name}")
            return original(*args, **named)

        is_bound = isinstance(inspect.getattr_static(owner, name), classmethod)
        patch.setattr(owner, name, staticmethod(broken) if is_bound else broken)


class SometimesSilent(Coin):
    """A drafter that drafts in about half of the steps, so that plain and verification steps alternate."""

    def propose(self, query: DraftQuery) -> Draft:
        draft = super().propose(query)
        return draft if sum(draft.tokens) % 2 else Draft()


def make_requests(start: int) -> list[GenerationRequest]:
    return [
        request(prompt_of(9 + 7 * i, start + i), name=f"{start + i}", max_tokens=12, temperature=0.9)
        for i in range(4)
    ]


def make_undrafted(start: int) -> GenerationRequest:
    """Make a request that decodes in plain steps once it is alone, so that these come in every run."""
    return replace(request(prompt_of(9, start), name=f"{start}"), draft=DraftChoice("none"))


def start_busy(
    start_engine: StartEngine, name: str, first: list[GenerationRequest], later: list[GenerationRequest]
) -> tuple[Engine, SometimesSilent, list[tuple[GenerationRequest, Answer]]]:
    """Start an engine and submit the first requests; return once one has text.

    later: the other requests for which the drafter is to know the answer.
    Returns the engine, its drafter, and the first requests with their answers.
    """
    known = {one.prompt: expected_tokens(name, one) for one in (*first, *later)}
    drafter = SometimesSilent(known, 0.8, num_ids=4096, name="suffix")
    sources = DraftSources({"suffix": drafter}, scored(1.0))
    engine = start_engine(
        load=lambda _: loaded_once(name), make_sources=lambda _: sources, max_rows=3, draft_type="suffix"
    )
    answers = [(one, Answer()) for one in first]
    has_begun = threading.Event()
    for one, answer in answers:
        answer.on_delta = has_begun.set
        engine.submit(one, answer)
    assert has_begun.wait(60)
    return engine, drafter, answers


def check(answers: SequenceOf[tuple[GenerationRequest, Answer]], name: str, max_failed: int) -> int:
    """Check that each answer has one end and that finished ones are right; return how many failed."""
    ends = [answer.end() for _, answer in answers]
    for (one, _), end in zip(answers, ends, strict=True):
        if isinstance(end, Finished):
            assert list(end.tokens) == expected_tokens(name, one)
    failed = [end for end in ends if isinstance(end, Failed)]
    assert {end.kind for end in failed} <= {"request"}
    assert len(failed) <= max_failed
    return len(failed)


@pytest.mark.parametrize("station", STATIONS)
def test_a_fault_at_any_station_ends_one_request_at_most(
    station: str, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, owner, method = STATIONS[station]
    first, third = make_requests(0), make_requests(20)
    second = [*make_requests(10), make_undrafted(15)]
    fault = Fault(monkeypatch, owner, method)
    engine, drafter, answers = start_busy(start_engine, name, first, [*second, *third])
    fault.num_left = 1
    answers += [(one, ask(engine, one)) for one in second]
    is_harmless = station.partition(" [")[0] in HARMLESS
    check(answers, name, 0 if is_harmless else 1)
    assert fault.num_raised == 1
    check([(one, ask(engine, one)) for one in third[:2]], name, 0)
    wait_until(lambda: engine.status().num_running == 0)
    assert (engine.status().state, engine.status().num_waiting) == ("ready", 0)
    assert drafter.num_open == 0


@pytest.mark.parametrize("station", STATIONS)
def test_a_death_at_any_station_tells_every_request_once(
    station: str, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, owner, method = STATIONS[station]
    first, second = make_requests(0), [*make_requests(10), make_undrafted(15)]
    death = Fault(monkeypatch, owner, method, SystemExit)
    engine, _, answers = start_busy(start_engine, name, first, second)
    death.num_left = 1
    for one in second:
        answers.append((one, Answer()))
        try:
            engine.submit(*answers[-1])
        except EngineError:
            answers.pop()
    ends = [answer.end() for _, answer in answers]
    assert death.num_raised == 1
    assert {end.kind for end in ends if isinstance(end, Failed)} == {"engine"}
    assert (engine.status().state, engine.status().num_waiting) == ("dead", 0)


def test_a_sink_that_raises_at_every_event_harms_nobody(start_engine: StartEngine) -> None:
    engine = start_engine(load=lambda _: loaded_once("llama"))
    events: list[Event] = []

    def broken(event: Event) -> None:
        events.append(event)
        raise ValueError("sink")

    first, *others = make_requests(0)
    engine.submit(first, broken)
    check([(one, ask(engine, one)) for one in others], "llama", 0)
    wait_until(lambda: engine.status().num_running == 0)
    assert [event.is_terminal for event in events].count(True) == 1
    assert isinstance(events[-1], Finished)


def test_cancelling_where_a_prefix_cannot_be_kept_harms_nobody(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(monkeypatch, PrefixCache, "put")
    engine = start_engine(load=lambda _: loaded_once("llama"), prefill_chunk_tokens=8)
    long = ask(engine, request(prompt_of(900), name="long"))
    fault.num_left = 1
    engine.cancel("long")
    assert long.failed().kind == "cancelled"
    check([(one, ask(engine, one)) for one in make_requests(0)], "llama", 0)
