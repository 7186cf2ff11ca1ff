"""Drafts pay on models whose steps take long: cold, restarted, with wrong costs on disk, and after a load."""

import json
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from reprise.bench.workloads.chats import render
from reprise.config.settings import Settings, costs_file
from reprise.drafters.assembly import make_drafters
from reprise.drafters.repetition import score_in_slices
from reprise.engine.engine import Engine
from reprise.engine.interface.events import Finished
from reprise.engine.interface.request import DraftChoice
from reprise.engine.pool.residency import Makers
from reprise.engine.speculative.costs.slowdown_budget import ALLOWANCE_STEPS
from reprise.engine.speculative.proposers import DraftSources
from tests.engine.support import ask, request, wait_until
from tests.real_weights.packages import FETCHED_WITHIN_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(FETCHED_WITHIN_S + 500)]

NUM_TOKENS = 40
TEXT = (
    "The lighthouse keeper wrote down the weather every morning, the names of the ships that passed, and how "
    "much oil the lamp had burned during the night."
)
QUOTE = f"Repeat the following text exactly, word for word.\n\n{TEXT}"
CHAT = "Tell me a short story about a dog and a river."


@pytest.fixture(autouse=True)
def _own_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture(scope="module", params=["smollm2_folder"])
def settings(request: pytest.FixtureRequest) -> Settings:
    folder = request.getfixturevalue(request.param)
    return Settings(model=str(folder), max_rows=2)


@contextmanager
def running(settings: Settings) -> Iterator[Engine]:
    """Run an engine as the server does, once what its model can do was tried."""

    def sources(vocabulary: str) -> DraftSources:
        return DraftSources(make_drafters(settings, vocabulary), score_in_slices)

    engine = Engine(settings, Makers(make_sources=sources))
    engine.start()
    try:
        wait_until(lambda: engine.info.is_tried, within_s=300)
        yield engine
    finally:
        engine.stop(drain_s=0)


def answer(engine: Engine, text: str, draft: str = "auto") -> Finished:
    tokenizer = engine.tokenizer
    # A base model continues a text that it has begun to repeat.
    begun = f"{text}\n\n{TEXT}\n\n{TEXT[:40]}" if text == QUOTE else text
    prompt = render(tokenizer, text) if tokenizer.has_chat_template else tuple(tokenizer.encode(begun))
    return ask(engine, replace(request(prompt, NUM_TOKENS), draft=DraftChoice(draft))).finished()


@pytest.fixture(scope="module")
def plain(settings: Settings) -> dict[str, tuple[int, ...]]:
    with running(replace(settings, keeps_costs=False)) as engine:
        return {text: tuple(answer(engine, text, "none").tokens) for text in (QUOTE, CHAT)}


def check(engine: Engine, plain: dict[str, tuple[int, ...]]) -> None:
    """From the second answer on a quote takes a third of the forward passes, and chat keeps the bound."""
    first, second = answer(engine, QUOTE), answer(engine, QUOTE)
    assert tuple(first.tokens) == tuple(second.tokens) == plain[QUOTE]
    assert second.usage.drafting.num_forwards <= len(second.tokens) / 3
    chat = answer(engine, CHAT)
    assert tuple(chat.tokens) == plain[CHAT]
    for each in (first, second, chat):
        drafting = each.usage.drafting
        plain_step_s = drafting.charged_plain_s / len(each.tokens)
        assert drafting.charged_s <= 1.03 * drafting.charged_plain_s + ALLOWANCE_STEPS * plain_step_s


@pytest.mark.parametrize("settings", ["smollm2_folder", "gemma3_folder"], indirect=True, scope="module")
def test_on_a_cold_server(settings: Settings, plain: dict[str, tuple[int, ...]]) -> None:
    with running(replace(settings, keeps_costs=False)) as engine:
        check(engine, plain)


def test_after_a_restart(settings: Settings, plain: dict[str, tuple[int, ...]]) -> None:
    with running(settings) as engine:
        check(engine, plain)
    with running(settings) as engine:
        assert engine.costs.table.guesses
        check(engine, plain)


def test_after_a_restart_with_a_straight_line_on_disk(
    settings: Settings, plain: dict[str, tuple[int, ...]]
) -> None:
    """With such costs no draft seems to pay."""
    file = costs_file()
    with running(settings) as engine:
        check(engine, plain)
    widths = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
    straight = [[rows, width, width] for rows in (1, 2) for width in widths]
    (key,) = json.loads(file.read_text())
    file.write_text(json.dumps({key: {"model": "", "ratios": straight}}))
    with running(settings) as engine:
        assert engine.costs.price(1, 16).ratio == pytest.approx(16)
        check(engine, plain)


def test_after_costs_were_learned_beside_a_load_that_went_away(
    settings: Settings, plain: dict[str, tuple[int, ...]]
) -> None:
    load = [multiprocessing.get_context("spawn").Process(target=spin, daemon=True) for _ in range(2)]
    with running(settings) as engine:
        for process in load:
            process.start()
        try:
            for _ in range(2):
                answer(engine, QUOTE)
        finally:
            for process in load:
                process.kill()
                process.join()
        check(engine, plain)


def spin() -> None:
    """Keep a processor busy until this process is killed."""
    until = time.monotonic() + 600
    while time.monotonic() < until:
        pass
