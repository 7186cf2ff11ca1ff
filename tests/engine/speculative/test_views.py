"""Views on their way to the drafters, and guesses, which are worth less than any other draft."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from reprise.config.settings import Settings
from reprise.drafters.base import (
    NO_DRAFT,
    SLICE_TOKENS,
    Draft,
    DraftQuery,
    SequenceStart,
    Slices,
    View,
)
from reprise.drafters.copies.occurrences import Occurrences
from reprise.drafters.repetition import score_in_slices
from reprise.drafters.suffix import SuffixDrafter
from reprise.engine.interface.request import DraftChoice, GenerationRequest, Sampling
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.draft_length import STEP_SLICES, DrafterWork
from reprise.engine.speculative.draft_model.forecast import DraftModelCosts, ShareOfTarget
from reprise.engine.speculative.planner import Planner
from reprise.engine.speculative.proposers import DraftSources, Proposers
from reprise.engine.speculative.sequence_drafts import SequenceDrafts

PROMPT = tuple(range(1, 9))


def begin(
    views: Sequence[View], *drafters: object, prompt: tuple[int, ...] = PROMPT
) -> tuple[SequenceDrafts, Proposers]:
    made = {drafter.name: drafter for drafter in drafters or (SuffixDrafter(0),)}
    proposers = Proposers(DraftSources(made, score_in_slices), Settings(gate="off"))
    request = GenerationRequest("1", prompt, 50, Sampling(0), draft=DraftChoice("auto"), views=views)
    return proposers.begin(request), proposers


def proposed(drafts: SequenceDrafts, limit: int = 4) -> list[int]:
    return list(drafts.propose(limit, 0.0, lambda _: True).draft.tokens)


def test_views_are_read_with_the_prompt_and_those_that_come_later_in_later_steps() -> None:
    views: list[View] = [array("I", range(100, 110))]
    drafts, proposers = begin(views)
    proposers.work.finish()
    drafts.observe([100, 101])
    assert proposed(drafts) == [102, 103, 104, 105]
    views.append(array("I", range(200, 210)))
    drafts.observe([200])
    assert proposers.work.is_left
    proposers.work.finish()
    drafts.observe([201])
    assert proposed(drafts) == [202, 203, 204, 205]


def test_views_of_a_sequence_that_has_ended_are_not_read() -> None:
    views: list[View] = [array("I", range(5000))]
    drafts, proposers = begin(views)
    proposers.work.advance()
    drafts.close()
    views.append(array("I", range(5000)))
    drafts.observe([1])
    proposers.work.finish()
    assert not proposers.work.is_left


def test_a_step_indexes_few_tokens_of_a_long_prompt_and_its_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count them in every step, and what is learned when the sequence ends: each takes about .1 us."""
    extend, added = Occurrences.extend, list[int]()

    def count(index: Occurrences, tokens: Any, *rest: Any) -> None:
        added.append(len(tokens))
        extend(index, tokens, *rest)

    monkeypatch.setattr(Occurrences, "extend", count)
    views = [array("I", range(9000))] * 3
    drafts, proposers = begin(views, SuffixDrafter(1 << 15), prompt=tuple(range(20_000)))
    total = 0
    for _ in ("reading", "learning"):
        while proposers.work.is_left:
            proposers.work.advance()
            assert sum(added) <= STEP_SLICES * SLICE_TOKENS
            total += sum(added)
            added.clear()
        drafts.close()
    assert total == 20_000 + 27_000 + 20_000


def test_a_slice_reads_few_of_many_small_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give empty ones, and more texts than there is room for."""
    views: list[View] = [array("I")] * 1024 + [array("I", range(300))] * 1024
    drafter, added = SuffixDrafter(0), list[View]()
    add_view = drafter.add_view

    def count(seq: int, view: View) -> Slices | None:
        added.append(view)
        return add_view(seq, view)

    drafter.add_view = count  # type: ignore[method-assign]
    monkeypatch.setattr("reprise.engine.speculative.proposers.DrafterWork", lambda: DrafterWork(1, 0.0))
    _, proposers = begin(views, drafter)
    while proposers.work.is_left:
        before = len(added)
        proposers.work.advance()
        assert len(added) - before <= 1
    assert added == views


class Fixed:
    """Always drafts the same."""

    def __init__(self, name: str, draft: Draft) -> None:
        self.name, self.draft = name, draft

    def open(self, start: SequenceStart) -> None:
        pass

    def propose(self, _: DraftQuery) -> Draft:
        return self.draft

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        pass

    def note_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        pass

    def close(self, seq: int) -> None:
        pass


GUESS = Fixed("suffix", Draft([7], "suffix", 0, 0.9, is_guess=True))
SURE = Fixed("ngram-mod", Draft([8, 9], "ngram-mod", 0, 0.5))


def test_any_other_draft_comes_before_a_guess() -> None:
    assert proposed(begin((), GUESS, SURE)[0]) == [8, 9]
    assert proposed(begin((), GUESS)[0]) == [7]


@pytest.mark.parametrize(("token_steps", "source"), [(0.01, "mtp"), (0.9, "suffix")])
def test_a_guess_and_a_head_are_drafted_by_which_promises_more(token_steps: float, source: str) -> None:
    drafts, _ = begin((), GUESS)
    drafts.uses_model = drafts.forecast.is_ready = True
    drafts.forecast.source = "mtp"
    costs = StepCosts({(1, 1): 1.0, (1, 32): 1.0}, is_learned=False)
    prior = ShareOfTarget(costs, token_steps)
    planner = Planner(costs, model_costs=DraftModelCosts(prior, costs, is_learned=False))
    request = GenerationRequest("1", PROMPT, 50, Sampling(0))
    row: Any = SimpleNamespace(
        request=request, tokens=list(PROMPT), num_answered=0, sampling=0, drafts=drafts, give_up_drafts=None
    )
    (planned,) = planner.plan([row])
    assert planned.source.source == source


def test_a_guess_that_does_not_pay_is_not_tried() -> None:
    drafts, _ = begin((), GUESS)
    drafts.propose(4, 100.0, lambda _: True)
    assert drafts.best is NO_DRAFT


def test_a_weak_draft_with_support_is_considered() -> None:
    weak = Draft([*range(20, 28)], "suffix", 0, 0.4)
    for draft, num_drafted in ((weak, 0), (replace(weak, support=[24] * 8), 8)):
        drafts, _ = begin((), Fixed("suffix", draft))
        assert drafts.propose(8, 2.0, lambda _: True).num_tokens == num_drafted


class Forcing:
    """A grammar that forces tokens and allows what follows."""

    def __init__(self, *forced: int) -> None:
        self.forced = list(forced)

    def forced_tokens(self) -> list[int]:
        return self.forced

    def count_allowed(self, tokens: Sequence[int]) -> int:
        return len(tokens)


@pytest.mark.parametrize(("forced", "support"), [((), [24] * 4), ((20,), ())])
def test_what_a_grammar_forces_teaches_nothing_about_support(forced: Any, support: Sequence[int]) -> None:
    drafts, _ = begin((), Fixed("suffix", Draft([20, 21, 22, 23], "suffix", 0, 0.9, support=[24] * 4)))
    matcher: Any = Forcing(*forced)
    drafts.matcher = matcher
    draft = drafts.propose(4, 0.0, lambda _: True).draft
    assert (draft.tokens, draft.support) == ([20, 21, 22, 23], support)


def test_a_guess_teaches_nothing_about_line_ends() -> None:
    drafts, proposers = begin((), GUESS)
    drafts.acceptance.line_ends = frozenset({7})
    proposed(drafts)
    drafts.observe([3])
    assert {source for source, _ in proposers.global_counts.counts} == {"suffix"}
