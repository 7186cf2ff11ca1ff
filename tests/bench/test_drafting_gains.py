"""Drafting saves as many forward passes as it did, on a device whose steps take known times."""

import math
import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from reprise.bench.workloads import make_chats
from reprise.bench.workloads.chats import render, render_turn
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings
from reprise.drafters.assembly import make_drafters
from reprise.drafters.repetition import score_in_slices
from reprise.engine.interface.request import GenerationRequest, Sampling
from reprise.engine.model.loading import load_tokenizer
from reprise.engine.speculative import proposers
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.planner import Planner
from reprise.engine.speculative.proposers import DraftSources, Proposers
from tests.engine.speculative.simulated_rows import Device, Spent

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
PLAIN_STEPS = (1.0, 1.43, 1.79, 2.12, 2.62, 3.04, 3.88, 5.23, 6.74, 9.79, 12.67)
"""What these widths cost: the bundled model on 2 cores, measured by the server in a calm moment."""


ROUNDS = 6
"""How often the chats are answered. Drafters keep nothing of them, but costs and acceptance are learned."""


@dataclass
class Machine:
    """How much slower or faster steps are because of other work, which lasts a while, with pauses.

    rng: None on a calm machine.
    """

    rng: random.Random | None = None
    level: float = 0.0

    def slowness(self, steps: float) -> float:
        """steps: how long the step takes on a calm machine, in plain steps."""
        if self.rng is None:
            return 1.0
        self.level = 0.98 * self.level + 0.07 * self.rng.gauss(0, 1)
        pause = self.rng.expovariate(0.5) / steps if self.rng.random() < 0.04 * steps else 0.0
        return math.exp(self.level) + pause


class Chats(Device):
    """One row that answers prompts with known answers."""

    machine: Machine

    def token(self, row: Any, index: int) -> int:
        return row.answer[index] if index < len(row.answer) else 0

    def cost(self, rows: Any, width: int) -> float:
        seconds = super().cost(rows, width)
        return seconds * self.machine.slowness(seconds / self.true_s(1, 1, 0))

    def ask(self, prompt: tuple[int, ...], answer: list[int]) -> int:
        """Return the forward passes that an answer takes."""
        asked = GenerationRequest("r", prompt, len(answer), Sampling(0, 0.0))
        row = SimpleNamespace(
            tokens=list(prompt), num_answered=0, request=asked, sampling=0, answer=answer,
            drafts=self.proposers.begin(asked), spent=Spent(0.03),
        )  # fmt: skip
        self.proposers.work.finish()
        self.rows, self.in_flight = [row], []
        while row.num_answered < len(answer):
            self.step()
        self.rows, self.in_flight = [], []
        row.drafts.close()
        proposers.reset(self.proposers)
        return row.drafts.counts.num_forwards


def tokens_per_forward(workload: str, machine: Machine) -> float:
    tokenizer = load_tokenizer(BUNDLED_MODEL)
    table = {(1, width): 0.005 * steps for width, steps in zip(WIDTHS, PLAIN_STEPS, strict=True)}
    true = StepCosts(table, is_learned=False)
    device = Chats(lambda rows, width, _: true.seconds(rows, width), StepCosts(table), [0.0])
    device.machine = machine
    settings = Settings()
    sources = DraftSources(make_drafters(settings, "test"), score_in_slices)
    device.proposers = Proposers(sources, settings, line_ends=tokenizer.line_ends)
    device.planner = Planner(device.believed)
    num_tokens = num_forwards = 0
    chats = make_chats(workload, 8, 1, lambda text: len(render(tokenizer, text)))
    for chat in ROUNDS * chats:
        turn = chat.turns[0]
        prompt = render_turn(tokenizer, turn)
        answer = [*tokenizer.encode_answer(turn.reference or ""), min(tokenizer.eos_ids)]
        num_tokens += len(answer)
        num_forwards += device.ask(prompt, answer)
    return num_tokens / num_forwards


@pytest.mark.parametrize(("workload", "least"), [("edits", 9.0), ("passages", 11.0), ("records", 6.8)])
def test_drafts_save_forward_passes(workload: str, least: float) -> None:
    assert tokens_per_forward(workload, Machine()) > least


@pytest.mark.parametrize(("workload", "least"), [("edits", 6.8), ("passages", 7.5), ("records", 5.2)])
def test_drafts_save_nearly_as_many_while_the_machine_is_busy(workload: str, least: float) -> None:
    machines = [Machine(random.Random(seed)) for seed in range(1, 17)]
    assert sum(tokens_per_forward(workload, machine) for machine in machines) / len(machines) > least
