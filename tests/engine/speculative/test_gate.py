"""Which prompts the gate takes for repetitive."""

from dataclasses import replace
from typing import Any

import pytest

from reprise.config.settings import Settings
from reprise.engine.interface.request import DraftChoice
from reprise.engine.speculative.gate import DOUBT, decide
from tests.engine.support import prompt_of, request


@pytest.mark.parametrize(
    ("gate", "score", "doubt"),
    [
        ("auto", 0.02, 1.0),
        ("auto", 0.005, DOUBT),
        (0.05, 0.02, DOUBT),
        (0.05, 0.06, 1.0),
        (0, 0.0, 1.0),
    ],
)
def test_a_number_is_auto_with_another_threshold(gate: Any, score: float, doubt: float) -> None:
    asked = replace(request(prompt_of(9)), draft=DraftChoice())
    decision = decide(asked, Settings(gate=gate), None, score=score)
    assert (decision.doubt, bool(decision.drafters)) == (doubt, True)
