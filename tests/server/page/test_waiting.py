"""While an answer waits, the page says for what, in plain words."""

import re

import pytest
from playwright.sync_api import expect

from reprise.config.settings import Settings
from reprise.server.app import create_app
from reprise.server.generation import answer
from tests.server.fake_engine import wait_first, wait_midway
from tests.server.page.steps import last_answer, reads, send, wait_for
from tests.server.served import served


def test_how_far_the_prompt_is(open_page, engine):
    engine.script = reads(0.0, 0.4)
    page = open_page()
    send(page, "Hello")
    expect(page.locator(".wait")).to_contain_text("Reading the prompt, 40 %")
    expect(page.locator(".wait progress")).to_have_attribute("value", "0.4")
    engine.release()
    expect(last_answer(page)).to_contain_text("user: Hello")
    expect(page.locator(".wait")).to_have_count(0)


def test_that_it_waits_for_a_row_and_for_how_long(open_page, engine, monkeypatch):
    monkeypatch.setattr(answer, "KEEP_ALIVE_S", 0.05)
    engine.script, engine.num_waiting = wait_first, 1
    with served(create_app(engine, Settings())) as address:
        page = open_page(address)
        send(page, "Hello")
        expect(page.locator(".wait")).to_contain_text("Waiting for a row: 1 answer is being written")
        # Comments keep the connection alive all the time; no reader sees them, but a clock.
        expect(page.locator(".wait")).to_contain_text(re.compile(r"· \d+ s$"))
        assert "alive" not in page.locator("main").inner_text()
        engine.num_waiting = 0
        expect(page.locator(".wait")).to_contain_text("Reading the prompt")
        engine.release()
        expect(last_answer(page)).to_contain_text("user: Hello")


def test_where_no_answer_is_being_written_none_is_counted(open_page):
    words = """async ([running, waiting]) => {
        const { fromHealth } = await import("/ui/runs/waiting.js");
        return fromHealth({ running, waiting }, "model").words;
    }"""
    page = open_page()
    assert page.evaluate(words, [0, 1]) == "Waiting to begin …"
    assert page.evaluate(words, [2, 1]) == "Waiting for a row: 2 answers are being written"
    assert page.evaluate(words, [1, 0]) == "Reading the prompt …"


def test_escape_stops(open_page, engine):
    engine.script = wait_midway
    page = open_page()
    send(page, "Hello")
    expect(last_answer(page)).to_contain_text("well")
    page.keyboard.press("Escape")
    expect(last_answer(page)).to_contain_text("You stopped this answer.")
    wait_for(lambda: engine.cancelled_ids)


@pytest.mark.slow
def test_a_server_that_is_gone_is_said_and_found_again(open_page, engine):
    with served(create_app(engine, Settings())) as address:
        page = open_page(address)
        expect(page.locator(".sample").first).to_be_visible()
    send(page, "Hello")
    expect(last_answer(page).get_by_role("alert")).to_contain_text("cannot be reached")
    expect(page.get_by_role("button", name="Retry")).to_be_visible()


@pytest.mark.slow
def test_a_server_that_still_starts_is_asked_again(open_page, engine):
    engine.state = "loading"
    page = open_page()
    expect(page.get_by_text("Trying again")).to_be_visible()
    engine.state = "ready"
    expect(page.locator(".sample").first).to_be_visible()
    expect(page.get_by_text("Trying again")).to_have_count(0)
