"""What a model takes is measured in each test, as some replace what is measured, or how."""

import pytest

from tests.engine.support import FINDINGS


@pytest.fixture(autouse=True)
def _nothing_is_known_of_a_model() -> None:
    FINDINGS.clear()
