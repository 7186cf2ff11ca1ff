"""An answer without drafts says why: the planner's reason, in words."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from reprise.drafters.base import NO_DRAFT, Draft, DraftQuery
from reprise.engine.batch.batch import Device
from reprise.engine.interface.events import DraftingReport
from reprise.engine.interface.request import DraftChoice, GenerationRequest
from reprise.engine.speculative.acceptance import Acceptance
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.draft_stats import (
    DEAR,
    INEXACT,
    LEFT_OUT,
    SPENT,
    TOO_LONG,
    UNLIKELY,
    UNMATCHED,
    UNREAD,
    WORDS,
    DraftCounts,
)
from reprise.engine.speculative.planner import Planner
from reprise.engine.speculative.proposers import DraftSources, MakeSources
from tests.drafters.fakes import Coin, Liar, Oracle, scored
from tests.engine.conftest import StartEngine
from tests.engine.driven import expected_tokens
from tests.engine.support import ask, make_loaded, prompt_of, request

ASKED = request(prompt_of(20), 40)
DEAR_COSTS = StepCosts({(1, 1): 1.0, (1, 2): 6.0, (1, 8): 40.0}, is_learned=False)
PRICE = "a step of 8 tokens costs 40.0 plain ones here (a guess)"


class Silent(Oracle):
    """A drafter that has no drafts."""

    def propose(self, _: DraftQuery) -> Draft:
        return NO_DRAFT


def knowing(make: Callable[..., Coin], *asked: GenerationRequest, name: str = "llama") -> MakeSources:
    """Return what makes a drafter that knows the answers to these requests."""
    answers = {one.prompt: expected_tokens(name, one) for one in asked}
    drafter = make(answers, name="suffix")
    return lambda _: DraftSources({"suffix": drafter}, scored(1.0))


def report_of(
    start_engine: StartEngine, kind: Callable[..., Coin], asked: GenerationRequest = ASKED, **settings: Any
) -> DraftingReport:
    """Answer a request on a new engine, and return what drafting did for it."""
    settings = {"make_sources": knowing(kind, ASKED), "draft_type": "suffix"} | settings
    report: DraftingReport = ask(start_engine(**settings), asked).finished().usage.drafting
    return report


def main_reason(report: DraftingReport) -> str:
    return max(report.undrafted, key=lambda one: one[1])[0]


def test_nothing_matched(start_engine: StartEngine) -> None:
    report = report_of(start_engine, Silent)
    assert [reason for reason, _ in report.undrafted] == [UNMATCHED]
    assert report.why_undrafted == "nothing matched"


def test_drafts_are_seldom_accepted(start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "lap", lambda *_: None)
    costs = StepCosts({(1, 1): 1.0, (1, 2): 1.6, (1, 8): 2.0}, is_learned=False)
    report = report_of(start_engine, Liar, costs=costs)
    assert main_reason(report) == UNLIKELY
    assert report.why_undrafted == f"drafts are seldom accepted (0 of {report.num_drafted} tokens)"


def test_a_step_is_dear(start_engine: StartEngine) -> None:
    report = report_of(start_engine, Oracle, costs=DEAR_COSTS)
    assert main_reason(report) == DEAR
    assert report.why_undrafted == PRICE


def test_a_step_is_dear_where_another_row_has_nothing_to_draft(start_engine: StartEngine) -> None:
    """If both rows had such drafts the step would pay."""
    other = request(prompt_of(30, 1), 300, name="other")
    costs = StepCosts({(1, 1): 1.0, (1, 8): 40.0, (2, 1): 1.0, (2, 8): 6.0}, is_learned=False)
    engine = start_engine(costs=costs, make_sources=knowing(Oracle, ASKED, other), draft_type="suffix")
    ask(engine, dataclasses.replace(other, draft=DraftChoice("none")))
    report = ask(engine, ASKED).finished().usage.drafting
    assert main_reason(report) == DEAR
    told = "a step of 8 tokens for each of 2 rows costs 6.0 plain ones here (a guess)"
    assert report.why_undrafted == told


def test_the_budget_is_spent(start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many drafts are rejected, these seem to be worth verifying."""
    monkeypatch.setattr(Acceptance, "rate", lambda *_: 0.95)
    monkeypatch.setattr(Device, "lap", lambda *_: None)
    costs = StepCosts({(1, 1): 1.0, (1, 8): 2.0}, is_learned=False)
    report = report_of(start_engine, Liar, costs=costs, draft_overhead=0.0)
    assert main_reason(report) == SPENT
    assert report.why_undrafted == (
        f"drafts used up the time that they may cost (0 of {report.num_drafted} tokens accepted)"
    )


def test_no_such_step_is_exact(start_engine: StartEngine) -> None:
    sources = knowing(Oracle, ASKED, name="baichuan_m1")
    report = report_of(start_engine, Oracle, make_sources=sources, name="baichuan_m1", exact=True)
    assert main_reason(report) == INEXACT
    assert report.why_undrafted == "steps that verify such drafts are not exact here (--exact)"


def test_a_draft_model_has_not_read_the_prompt(start_engine: StartEngine) -> None:
    report = report_of(
        start_engine, Silent, request(prompt_of(900), 3),
        make_sources=lambda _: DraftSources({}, scored(0.0)), load_draft=lambda _: make_loaded("llama"),
        draft_type="draft-model", draft_model="the one that load_draft makes",
    )  # fmt: skip
    assert main_reason(report) == UNREAD
    assert report.why_undrafted == "the draft model or head had not read the prompt yet"


def test_a_draft_model_that_does_not_pay_reads_few_prompts(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Planner, "model_pays", lambda *_: False)
    engine = start_engine(
        make_sources=lambda _: DraftSources({}, scored(0.0)), load_draft=lambda _: make_loaded("llama"),
        draft_type="draft-model", draft_model="the one that load_draft makes",
    )  # fmt: skip
    # The first is read.
    _, report = [ask(engine, ASKED).finished().usage.drafting for _ in range(2)]
    assert report.why_undrafted.startswith(LEFT_OUT)


def test_a_draft_model_that_does_not_pay_says_what_its_tokens_cost(start_engine: StartEngine) -> None:
    """It is asked for by name, and has read the prompt."""
    engine = start_engine(
        make_sources=lambda _: DraftSources({}, scored(0.0)), load_draft=lambda _: make_loaded("llama"),
        draft_type="draft-model", draft_model="the one that load_draft makes",
        costs=StepCosts({(1, 1): 1.0, (1, 2): 1.9, (1, 8): 7.0}, is_learned=False),
    )  # fmt: skip
    report = ask(engine, request(prompt_of(20), 60)).finished().usage.drafting
    assert main_reason(report) == DEAR
    assert report.why_undrafted.startswith(f"{WORDS[DEAR]} (a token of the draft model costs ")


def test_a_prompt_that_takes_longer_to_read_than_the_answer_saves_is_told() -> None:
    counts = DraftCounts(num_forwards=24, undrafted={UNREAD: 4}, is_model_dropped=True)
    assert counts.why_undrafted() == TOO_LONG


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        (Oracle, ASKED),
        (Silent, dataclasses.replace(ASKED, max_tokens=1)),
        (Silent, dataclasses.replace(ASKED, draft=DraftChoice("none"))),
        (Silent, dataclasses.replace(ASKED, draft=DraftChoice(max_tokens=0))),
    ],
    ids=["drafted", "one token", "off", "no tokens"],
)
def test_nothing_is_said_if_drafts_were_used_or_none_may_be(
    kind: Callable[..., Coin], asked: GenerationRequest, start_engine: StartEngine
) -> None:
    """Beside a row that may draft, so that a plan is made."""
    other = request(prompt_of(30, 1), 300, name="other")
    engine = start_engine(make_sources=knowing(kind, ASKED, other), draft_type="suffix")
    ask(engine, other)
    report = ask(engine, asked).finished().usage.drafting
    assert bool(report.num_drafted) == (kind is Oracle)
    assert report.why_undrafted == ""
    assert report.undrafted == ()
