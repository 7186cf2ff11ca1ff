"""Chunks are sized by what chunks took before, on simulated devices whose speed nothing here knows."""

import random
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import pytest

from reprise.engine.interface.status import STALL_S
from reprise.engine.memory.prefill_plan import STALL_STEPS, PrefillCosts, PrefillLimits, plan_prefill

MAX_STALL_MS = 50.0


@dataclass
class Device:
    """A device on which a chunk takes forward_s + n * (token_s + pair_s * context), times noise."""

    forward_s: float
    token_s: float
    pair_s: float
    noise: float = 0.1
    slowness: float = 1.0
    rng: random.Random = field(default_factory=lambda: random.Random(5))

    def feed(self, num_tokens: int, num_before: int) -> float:
        context = num_before + num_tokens / 2
        seconds = self.forward_s + num_tokens * (self.token_s + self.pair_s * context)
        return seconds * self.slowness * self.rng.lognormvariate(0, self.noise)

    @property
    def plain_s(self) -> float:
        return self.forward_s + self.token_s

    @property
    def unavoidable_s(self) -> float:
        """How long rows may wait at least."""
        return max(MAX_STALL_MS / 1000, STALL_STEPS * self.plain_s)


DEVICES = {
    "processor": Device(0.002, 2e-4, 1e-7),
    "noisy processor": Device(0.002, 2e-4, 1e-7, noise=0.3),
    "laptop": Device(0.02, 1e-4, 1e-8),
    "large GPU": Device(0.01, 2e-5, 1e-9),
    "exact": Device(0.001, 2e-4, 5e-8, noise=0.0),
    "1 ms a step": Device(0.001, 1e-5, 1e-9),
    "50 ms a step": Device(0.05, 1e-3, 1e-7),
    "170 ms a step, bound by computing": Device(0.07, 0.032, 5e-6),
    "200 ms a step": Device(0.2, 0.015, 1e-6),
    "1 s a step": Device(1.0, 0.01, 1e-6),
    "1 s a token": Device(0.05, 1.0, 1e-6),
}


def device_of(name: str) -> Device:
    """Return a device with noise of its own, whichever test comes first."""
    return replace(DEVICES[name], rng=random.Random(5))


@dataclass
class Prompt:
    num_left: int
    num_before: int
    began: int


class Simulation:
    """Steps of an engine in which rows always decode, or none, and prompts arrive at random.

    stalls_s: what the chunks of each step took. waited: steps that each prompt took, by its first num_left.
    """

    def __init__(self, device: Device, num_rows: int = 3) -> None:
        self.num_rows = num_rows
        self.device, self.costs, self.rng = device, PrefillCosts(), random.Random(11)
        self.prompts: list[Prompt] = []
        self.stalls_s: list[float] = []
        self.fed: list[int] = []
        self.num_done = self.num_passed = 0

    def run(self, num_steps: int, arrivals: float = 0.02) -> None:
        for step in range(num_steps):
            if self.rng.random() < arrivals or not self.prompts:
                length = min(int(60 * self.rng.paretovariate(0.8)), 12_000)
                # What is not computed may follow a cached prefix.
                self.prompts.append(Prompt(length, self.rng.choice([0, 0, 0, 600, 5000]), step))
            limits = PrefillLimits.of_step(self.num_rows, MAX_STALL_MS, 2048, self.device.plain_s)
            costs = [partial(self._seconds, prompt) for prompt in self.prompts]
            lacking = [prompt.num_left for prompt in self.prompts]
            chunks = plan_prefill(lacking, costs, limits, None, self.num_passed)
            self.num_passed = 0 if chunks[0] else self.num_passed + 1
            self.fed.append(sum(chunks))
            self.stalls_s.append(sum(map(self._feed, self.prompts, chunks)))
            self.num_done += sum(prompt.num_left == 0 for prompt in self.prompts)
            self.prompts = [prompt for prompt in self.prompts if prompt.num_left]

    def _seconds(self, prompt: Prompt, num_tokens: int) -> float:
        plain_s = self.device.plain_s if num_tokens else 0.0
        return max(plain_s, self.costs.seconds(num_tokens, prompt.num_before, plain_s))

    def _feed(self, prompt: Prompt, chunk: int) -> float:
        if not chunk:
            return 0.0
        seconds = self.device.feed(chunk, prompt.num_before)
        self.costs.observe(chunk, prompt.num_before, seconds)
        prompt.num_left -= chunk
        prompt.num_before += chunk
        return seconds


def p99_s(stalls_s: list[float]) -> float:
    return sorted(stalls_s)[int(0.99 * len(stalls_s))]


@pytest.mark.parametrize("name", DEVICES)
def test_ninety_nine_of_a_hundred_steps_keep_to_the_limit(name: str) -> None:
    device = device_of(name)
    simulation = Simulation(device)
    simulation.run(4000)
    assert p99_s(simulation.stalls_s) <= device.unavoidable_s
    assert simulation.num_done > 20
    # The time is used: where the chunks are not the last of their prompts, half of it and more.
    assert p99_s(simulation.stalls_s) > device.unavoidable_s / 2


@pytest.mark.parametrize("name", ["1 s a step", "1 s a token"])
@pytest.mark.parametrize("num_rows", [0, 1])
def test_the_slowest_model_shows_progress_long_before_it_counts_as_stalled(name: str, num_rows: int) -> None:
    simulation = Simulation(device_of(name), num_rows)
    simulation.run(300)
    assert max(simulation.stalls_s) + DEVICES[name].plain_s < STALL_S / 10


@pytest.mark.parametrize("name", ["50 ms a step", "200 ms a step", "1 s a step"])
@pytest.mark.parametrize("num_prompts", [1, 2])
def test_where_a_forward_pass_takes_long_chunks_are_worth_it(name: str, num_prompts: int) -> None:
    device = device_of(name)
    simulation = Simulation(device)
    simulation.prompts = [Prompt(6000 // (1 + 7 * at), 0, 0) for at in range(num_prompts)]
    simulation.run(40, arrivals=0.0)
    simulation.fed, simulation.stalls_s = [], []
    simulation.run(40, arrivals=0.0)
    tokens_per_s = sum(simulation.fed) / sum(simulation.stalls_s)
    # The rest is the price of a forward pass for each chunk.
    assert tokens_per_s > 0.3 / device.token_s


def test_the_first_chunks_are_small_and_grow_quickly() -> None:
    simulation = Simulation(Device(0.005, 1e-5, 0.0, noise=0.0))
    simulation.prompts = [Prompt(100_000, 0, 0)]
    simulation.run(12, arrivals=0.0)
    assert simulation.fed[0] < 10
    assert max(simulation.stalls_s) <= MAX_STALL_MS / 1000
    assert all(after >= before for before, after in pairwise(simulation.fed[:7]))
    assert min(simulation.fed[10:]) > 1000


def test_a_machine_that_becomes_slower_gets_smaller_chunks_at_once() -> None:
    simulation = Simulation(Device(0.002, 1e-4, 1e-8))
    simulation.run(1000)
    simulation.device.slowness = 3.0
    num_before = len(simulation.stalls_s)
    simulation.run(1000)
    late = [s for s in simulation.stalls_s[num_before:] if s > MAX_STALL_MS / 1000]
    assert len(late) <= 10


def test_a_pause_of_the_machine_is_forgotten_soon() -> None:
    simulation = Simulation(Device(0.002, 1e-4, 0.0, noise=0.0))
    simulation.prompts = [Prompt(10**6, 0, 0)]
    simulation.run(50, arrivals=0.0)
    usual = simulation.fed[-1]
    simulation.device.slowness = 40.0
    simulation.run(1, arrivals=0.0)
    simulation.device.slowness = 1.0
    simulation.run(10, arrivals=0.0)
    assert simulation.fed[51] < usual / 2
    assert simulation.fed[-1] > 0.8 * usual


def test_prompts_advance_even_if_a_token_takes_longer_than_max_stall() -> None:
    simulation = Simulation(Device(1.0, 0.1, 0.0, noise=0.0))
    simulation.prompts = [Prompt(400, 0, 0), Prompt(360, 0, 0)]
    simulation.run(40, arrivals=0.0)
    assert all(simulation.fed)
    # One chunk may begin another prompt, whose shorter context is new.
    assert sorted(simulation.stalls_s)[-2] <= simulation.device.unavoidable_s
    assert sum(simulation.fed) > 300
    assert sum(prompt.num_left for prompt in simulation.prompts) < 450


def test_where_every_token_takes_long_few_are_fed() -> None:
    simulation = Simulation(Device(0.001, 0.04, 0.0, noise=0.0))
    simulation.prompts = [Prompt(200, 0, 0)]
    simulation.run(40, arrivals=0.0)
    assert set(simulation.fed[5:]) <= {1, 2, 3}


def test_a_context_longer_than_any_before_is_not_underestimated() -> None:
    device, costs = Device(0.002, 1e-4, 4e-7, noise=0.0), PrefillCosts()
    for _ in range(20):
        costs.observe(64, 0, device.feed(64, 0))
    assert costs.seconds(64, 8000) >= device.feed(64, 8000)
    assert costs.seconds(2048, 0) >= device.feed(2048, 0) / 4
    assert costs.seconds(0, 8000) == 0


def test_unknown_seconds_teach_nothing() -> None:
    costs = PrefillCosts()
    costs.observe(64, 0, None)
    assert costs.seconds(64, 0) == 64.0
    assert costs.seconds(64, 0, token_s=0.005) == 0.32
