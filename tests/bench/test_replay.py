"""The replay: known answers, real drafters, the server's gate."""

import ast
import random
from pathlib import Path

import pytest

from bench.edits import KINDS, Case, edit, edit_cases, trap_cases
from bench.policies import CPU_BF16, M4_PRO, Always, FixedLookup, Gate, Hindsight
from bench.replay import Policy, run
from drafters.suffix import SuffixDrafter

ROOT = Path(__file__).parent.parent.parent
FILES = [ROOT / "drafters"]

SUFFIX_GATE = Policy("suffix", SuffixDrafter, Gate)


def encode(text: str) -> list[int]:
    """Words and what is between them, as ids."""
    ids: dict[str, int] = {}
    pieces = text.replace("\n", " \n ").replace("(", " ( ").replace(".", " . ").split(" ")
    return [ids.setdefault(piece, hash(piece) % 2**20) for piece in pieces]


@pytest.fixture(scope="module")
def edits() -> list[Case]:
    return edit_cases(FILES, encode, 6, seed=3)


@pytest.mark.parametrize("kind", KINDS)
def test_an_edit_changes_a_file_and_is_the_same_for_the_same_seed(kind: str) -> None:
    text = (ROOT / "drafters" / "suffix.py").read_text()
    once, again = (edit(text, kind, random.Random(5))[0] for _ in range(2))
    assert once == again
    assert once != text


def test_renaming_keeps_a_file_python() -> None:
    text = (ROOT / "drafters" / "history.py").read_text()
    for seed in range(20):
        ast.parse(edit(text, "rename", random.Random(seed))[0])


def test_a_replay_says_the_whole_answer_whatever_the_policy(edits: list[Case]) -> None:
    policies = [SUFFIX_GATE, Policy("fixed", lambda: FixedLookup(4, 2), lambda _: Always(4))]
    for policy in policies:
        outcomes = run(policy, edits, M4_PRO)
        assert [outcome.num_tokens for outcome in outcomes] == [len(case.answer) for case in edits]
        assert all(outcome.num_forwards <= outcome.num_tokens for outcome in outcomes)


def test_the_gate_gets_nearly_what_hindsight_gets(edits: list[Case]) -> None:
    gated = sum(outcome.cost for outcome in run(SUFFIX_GATE, edits, M4_PRO))
    best = sum(o.cost for o in run(Policy("best", SuffixDrafter, lambda _: Hindsight(31)), edits, M4_PRO))
    assert best <= gated < best / 0.8


@pytest.mark.parametrize("curve", [M4_PRO, CPU_BF16], ids=lambda curve: curve.name)
def test_no_trap_makes_an_answer_slower_than_the_ledger_allows(curve) -> None:
    for outcome in run(SUFFIX_GATE, trap_cases(4, seed=2), curve):
        assert outcome.num_tokens / outcome.cost >= 0.97
