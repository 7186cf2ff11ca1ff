"""`scripts/drafter_costs.py` has figures of every drafter."""

import runpy
from pathlib import Path

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts/drafter_costs.py"))


def test_every_drafter_is_measured_with_every_prompt() -> None:
    for prompt in SCRIPT["NUM_IDS"]:
        for drafter in (*SCRIPT["DRAFTERS"], SCRIPT["SCORE"]):
            costs = SCRIPT["measure"](drafter, prompt, 1_000)
            assert costs["slice"] > 0
            assert costs["us/token"] > 0 or drafter == SCRIPT["SCORE"]
