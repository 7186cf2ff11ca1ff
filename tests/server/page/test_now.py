"""The tab that shows what the server does now: its figures, its chart, and why nothing was drafted."""

from dataclasses import replace

import pytest
from chromium import settle
from playwright.sync_api import expect

from reprise.engine.interface.events import DraftingReport
from tests.server.fake_engine import tells
from tests.server.page.steps import ask, last_answer

PRICE = "a step of 8 tokens costs 7.6 plain ones here (seen in real steps)"


def open_now(page):
    page.get_by_role("link", name="Now").click()
    expect(page.get_by_role("table", name="The last requests")).to_be_visible()


def test_why_nothing_was_drafted_is_said_in_the_server_s_words(open_page, engine):
    engine.script = tells("well")
    engine.drafting = DraftingReport(num_forwards=4, why_undrafted=PRICE)
    page = open_page()
    answer = ask(page, "Hello", f"no drafts: {PRICE}")
    engine.drafting = replace(engine.drafting, num_drafted=8, by_source=(("suffix", 8, 0),))
    page.get_by_role("button", name="Retry").click()
    expect(last_answer(page).locator(".figures")).to_contain_text(f"few drafts: {PRICE}")
    expect(answer.locator(".versions")).to_contain_text("2/2")
    open_now(page)
    expect(page.locator(".why")).to_contain_text(f"Why was nothing drafted? {PRICE}.")
    requests = page.get_by_role("table", name="The last requests").locator("tbody tr")
    expect(requests).to_contain_text([f"suffix 0/8, few drafts: {PRICE}", f"no drafts: {PRICE}"])


def test_counts_and_no_texts(open_page):
    page = open_page()
    ask(page, "A very secret question", "secret")
    open_now(page)
    requests = page.get_by_role("table", name="The last requests")
    expect(requests.locator("tbody tr")).to_have_count(1)
    expect(requests).to_contain_text("POST /v1/chat/completions")
    expect(page.locator(".tile").filter(has_text="N-gram table")).to_contain_text("25 %")
    assert "secret" not in page.locator("main").inner_text()


@pytest.mark.slow
def test_steps_without_drafts_are_counted_by_reason(open_page, engine):
    engine.drafting = DraftingReport(num_forwards=4, undrafted=(("unmatched", 1), ("dear", 3)))
    page = open_page()
    ask(page, "Hello", "Hello")
    open_now(page)
    table = page.get_by_role("table", name="Steps without a draft since the server started, by reason")
    expect(table.locator("tbody tr")).to_have_text(
        ["drafts would cost more than they save (dear)3", "nothing matched (unmatched)1"]
    )


def test_all_columns_fit_a_screen_numbers_are_right_aligned_and_a_phone_has_cards(open_page, engine):
    engine.drafting = DraftingReport(num_forwards=4, why_undrafted=PRICE)
    page = open_page(viewport={"width": 1280, "height": 800})
    ask(page, "Hello", "Hello")
    open_now(page)
    table = page.get_by_role("group", name="The last requests")
    assert table.evaluate("(one) => one.scrollWidth <= one.clientWidth")
    numbers = table.locator("tbody td.number")
    expect(numbers).to_have_count(7)
    aligned = numbers.evaluate_all("(all) => all.map((one) => getComputedStyle(one).textAlign)")
    assert set(aligned) == {"right"}
    page.set_viewport_size({"width": 390, "height": 844})
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert table.evaluate("(one) => one.scrollWidth <= one.clientWidth")
    cell = table.locator("td", has_text="POST /v1/chat")
    assert cell.evaluate("(one) => getComputedStyle(one, '::before').content") == '"endpoint"'
    assert cell.bounding_box()["width"] > 300


@pytest.mark.slow
def test_the_chart_has_a_scale_and_goes_on_after_another_tab(open_page):
    page = open_page(path="/ui#now")
    line = page.locator(".chart polyline")
    expect(line).to_have_count(1)
    expect(page.locator(".scale-y span")).to_have_text(["4", "2", "0"])
    expect(page.locator(".scale-x span")).to_have_text(["2 min ago", "1 min ago", "now"])
    expect(page.get_by_role("img", name="Tokens a second in the last two minutes: now 0")).to_be_visible()
    before = len(line.get_attribute("points").split())
    page.get_by_role("link", name="Connect").click()
    expect(page.get_by_label("Client")).to_be_visible()
    open_now(page)
    assert len(line.first.get_attribute("points").split()) >= before
