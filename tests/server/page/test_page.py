"""The page in a real browser, with an engine that says what a test wants."""

import json
import os
import time
from dataclasses import replace

import pytest
from chromium import browser, find_browser, open_tab, settle
from playwright.sync_api import expect

from config.settings import Settings
from engine.request import DraftingReport
from server.app import create_app
from tests.server.fake_engine import (
    CALLING,
    THINKING,
    fail_midway,
    says,
    tells,
    traces,
    wait_midway,
)
from tests.server.served import served

HOSTILE = (
    "<script>window.broken = 1</script><img src='https://example.com/a.png' onerror='window.broken = 2'>"
    "<a href='javascript:window.broken = 3'>bad</a> [also bad](javascript:window.broken=4) "
    "<p style='position:fixed' onclick='window.broken = 5'>p</p><iframe src='https://example.com'></iframe>\n\n**bold**\n\n"
    "```python\nx = '<b>1</b>'\n```\n"
)
TABS = ("Chat", "Race", "Now", "Models", "Connect")
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALLED = ("<tool_call>", '{"name": "look", "arguments": {}}', "</tool_call>")


@pytest.fixture(scope="module")
def started():
    if find_browser() is None:
        reason = "no Chromium or Chrome is installed here"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with browser() as one:
        yield one


@pytest.fixture
def open_page(started, url):
    """Opens the page with storage of its own. Nothing may fail in it, or be asked for elsewhere."""
    opened = []

    def open_at(address=url, path="/", **context):
        tab = open_tab(started, permissions=["clipboard-read", "clipboard-write"], **context)
        opened.append((tab, address))
        tab.page.goto(f"{address}{path}")
        return tab.page

    yield open_at
    for tab, address in opened:
        refused = "Failed to load resource"
        assert [text for text in tab.complaints if not text.startswith(refused)] == []
        assert [one for one in tab.requests if not one.startswith(f"{address}/")] == []
        tab.page.context.close()


def send(page, text, label="Message"):
    page.get_by_label(label, exact=True).fill(text)
    page.get_by_label(label, exact=True).press("Enter")


def last_answer(page):
    return page.locator("article.assistant").last


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_chat_is_answered_kept_edited_and_tried_again(open_page, engine):
    page = open_page()
    send(page, "Hello there")
    expect(last_answer(page)).to_contain_text("user: Hello there")
    send(page, "And now?")
    expect(last_answer(page)).to_contain_text("And now?")
    messages = engine.tokenizer.rendered[-1][0]
    assert [one["role"] for one in messages] == ["user", "assistant", "user"]
    page.reload()
    expect(page.locator("article")).to_have_count(4)
    page.get_by_role("button", name="Edit").last.click()
    expect(page.locator("article")).to_have_count(2)
    expect(page.get_by_label("Message")).to_have_value("And now?")
    send(page, "Or then?")
    expect(last_answer(page)).to_contain_text("Or then?")
    engine.script = says("Something else")
    page.get_by_role("button", name="Retry").last.click()
    expect(last_answer(page)).to_contain_text("Something else")
    expect(page.locator("article")).to_have_count(4)
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("article")).to_have_count(0)


def test_parameters_reach_the_engine_and_are_kept(open_page, engine):
    page = open_page()
    page.get_by_text("and parameters").click()
    for label, value in (("Temperature", "0.5"), ("Maximum tokens", "7"), ("Seed", "42")):
        page.get_by_label(label).fill(value)
    page.get_by_label("System prompt").fill("Be short.")
    page.get_by_role("combobox", name="Model").select_option("alias")
    send(page, "Hello")
    expect(last_answer(page)).to_contain_text("system")
    (request,) = engine.requests
    assert (request.sampling.temperature, request.sampling.seed, request.max_tokens) == (0.5, 42, 7)
    page.reload()
    page.get_by_text("and parameters").click()
    expect(page.get_by_label("System prompt")).to_have_value("Be short.")
    expect(page.get_by_role("combobox", name="Model")).to_have_value("alias")


def test_what_a_model_writes_can_do_nothing(open_page, engine):
    engine.script = says(*HOSTILE)
    page = open_page()
    send(page, HOSTILE)
    answer = last_answer(page)
    expect(answer.locator("strong")).to_have_text("bold")
    expect(answer.locator("code .hljs-string, code.hljs")).not_to_have_count(0)
    assert page.evaluate("typeof window.broken") == "undefined"
    assert answer.locator("script, img, iframe, [style], [onclick], [href^='javascript']").count() == 0
    assert page.locator("article.user script, article.user img").count() == 0
    # It is shown as the text that it is.
    expect(answer).to_contain_text("<iframe src='https://example.com'></iframe>")
    for link in answer.locator("a").all():
        link.click()
    page.get_by_label("Show where").check()
    settle(page)
    assert page.evaluate("typeof window.broken") == "undefined"


def test_the_browser_refuses_other_scripts_and_addresses(started, url):
    page = open_tab(started).page
    page.goto(f"{url}/ui")
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.a = 1'}))"
    )
    assert page.evaluate("typeof window.a") == "undefined"
    assert page.evaluate("fetch('https://example.com/').then(() => 'reached', () => 'refused')") == "refused"
    page.context.close()


def test_code_and_answers_are_copied_with_a_click(open_page, engine):
    engine.script = says("Look:\n\n```python\nx = 1\n```\n")
    page = open_page()
    send(page, "Hello")
    last_answer(page).locator("pre").get_by_role("button", name="Copy").click()
    expect(last_answer(page).locator("pre").get_by_role("button")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "x = 1\n"
    last_answer(page).locator("footer").get_by_role("button", name="Copy").click()
    expect(last_answer(page).locator("footer")).to_contain_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "Look:\n\n```python\nx = 1\n```\n"


def test_an_answer_can_be_stopped_and_keeps_what_it_has(open_page, engine):
    engine.script = wait_midway
    page = open_page()
    send(page, "Hello")
    expect(last_answer(page)).to_contain_text("well")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    wait_for(lambda: engine.cancelled_ids)
    expect(last_answer(page)).to_contain_text("well")
    engine.script = says("Yes.")
    send(page, "Go on")
    expect(last_answer(page)).to_contain_text("Yes.")
    assert [one["content"] for one in engine.tokenizer.rendered[-1][0]] == ["Hello", "well ", "Go on"]


def test_leaving_the_tab_stops_its_answer(open_page, engine):
    engine.script = wait_midway
    page = open_page()
    send(page, "Hello")
    expect(last_answer(page)).to_contain_text("well")
    page.get_by_role("link", name="Models").click()
    wait_for(lambda: engine.cancelled_ids)


def test_text_has_the_colour_of_what_drafted_it(open_page, engine):
    engine.script = traces(("The ", "model"), ("quick ", "suffix"), ("brown ", "suffix"), ("fox", "grammar"))
    engine.drafting = DraftingReport(num_forwards=2)
    page = open_page()
    send(page, "Hello")
    page.get_by_label("Show where").check()
    spans = last_answer(page).locator(".traced span")
    expect(spans).to_have_text(["The ", "quick brown ", "fox"])
    colours = [one.evaluate("(one) => getComputedStyle(one).backgroundColor") for one in spans.all()]
    assert len(set(colours)) == 3
    expect(last_answer(page).locator(".legend li")).to_have_text(
        ["the model itself", "copied from earlier text", "forced by the grammar"]
    )
    expect(last_answer(page).locator(".figures")).to_contain_text("2.00 tokens a forward pass")
    expect(last_answer(page).locator(".figures")).to_contain_text("first token")


def test_an_answer_without_drafts_says_why(open_page, engine):
    engine.script = tells("well")
    engine.drafting = DraftingReport(num_forwards=4, why_undrafted="nothing matched")
    page = open_page()
    send(page, "Hello")
    expect(last_answer(page).locator(".figures")).to_contain_text("no drafts: nothing matched")
    engine.drafting = replace(engine.drafting, num_drafted=8, by_source=(("suffix", 8, 0),))
    page.get_by_role("button", name="Retry").click()
    expect(last_answer(page).locator(".figures")).to_contain_text("few drafts: nothing matched")
    page.get_by_role("link", name="Now").click()
    expect(page.get_by_text("Most recently: nothing matched.")).to_be_visible()
    requests = page.get_by_role("table", name="The last requests").locator("tbody tr")
    expect(requests).to_contain_text(
        ["suffix 0/8, few drafts: nothing matched", "no drafts: nothing matched"]
    )


def test_nothing_is_said_of_drafts_while_the_answer_grows(open_page, engine):
    """The next step may have one."""

    def tell(engine, job):
        end = tells("well")(engine, job)
        engine.wait_for_release(job)
        return end

    engine.script = tell
    engine.drafting = DraftingReport(num_forwards=4, why_undrafted="nothing matched")
    page = open_page()
    send(page, "Hello")
    expect(last_answer(page).locator(".figures")).to_contain_text("tokens/s")
    expect(last_answer(page).locator(".figures")).not_to_contain_text("no drafts")
    engine.release()
    expect(last_answer(page).locator(".figures")).to_contain_text("no drafts: nothing matched")


def test_thinking_is_folded(open_page, engine):
    engine.tokenizer.markers = THINKING
    engine.script = says("<think>", "Let me see.", "</think>", "Yes.")
    page = open_page()
    send(page, "Hello")
    expect(last_answer(page)).to_contain_text("Yes.")
    expect(page.get_by_text("Let me see.")).to_be_hidden()
    page.get_by_text("Thinking").click()
    expect(page.get_by_text("Let me see.")).to_be_visible()


def test_a_call_is_shown_and_its_result_can_be_given(open_page, engine):
    engine.tokenizer.markers = CALLING
    engine.script = says(*CALLED)
    page = open_page()
    page.get_by_text("and parameters").click()
    page.get_by_label("Tools, as JSON").fill("[{")
    send(page, "Look")
    expect(page.get_by_role("alert").first).to_contain_text("not JSON")
    page.get_by_role("button", name="New chat").click()
    page.get_by_label("Tools, as JSON").fill(json.dumps([TOOL]))
    send(page, "Look")
    expect(last_answer(page)).to_contain_text("Calls look")
    engine.script = says("I see.")
    send(page, "a cat", label="Result of look")
    expect(last_answer(page)).to_contain_text("I see.")
    roles = [one["role"] for one in engine.tokenizer.rendered[-1][0]]
    assert roles == ["user", "assistant", "tool"]
    assert engine.tokenizer.rendered[-1][0][2]["content"] == "a cat"


def test_a_fault_is_shown_and_the_chat_goes_on(open_page, engine):
    engine.script = fail_midway
    page = open_page()
    send(page, "Hello")
    expect(last_answer(page).get_by_role("alert")).to_contain_text("the roof is on fire")
    expect(last_answer(page)).to_contain_text("well")
    engine.script = says("Here again.")
    page.get_by_role("button", name="Retry").click()
    expect(last_answer(page)).to_contain_text("Here again.")


def test_a_race_says_whether_the_texts_are_equal(open_page, engine):
    engine.script = tells("the same")
    page = open_page(path="/ui#race")
    page.get_by_label("Prompt", exact=True).fill("Hello")
    page.get_by_role("button", name="Race").click()
    expect(page.locator(".verdict")).to_contain_text("The texts are equal.")
    plain, drafts = engine.requests
    assert (plain.draft.type, drafts.draft.type) == ("none", None)
    assert plain.sampling == drafts.sampling
    assert plain.prompt == drafts.prompt
    engine.drafting = DraftingReport(why_undrafted="nothing matched")
    page.get_by_role("button", name="Race").click()
    expect(page.locator(".verdict")).to_contain_text(
        "1.00 times as fast. There were no drafts: nothing matched. Seed"
    )
    engine.drafting = DraftingReport()
    numbers = iter("12")
    engine.script = lambda engine, job: tells(f"answer {next(numbers)}")(engine, job)
    page.get_by_role("button", name="Race").click()
    expect(page.locator(".verdict")).to_contain_text("The texts differ.")


def test_now_shows_counts_and_no_texts(open_page):
    page = open_page()
    send(page, "A very secret question")
    expect(last_answer(page)).to_contain_text("secret")
    page.get_by_role("link", name="Now").click()
    requests = page.get_by_role("table", name="The last requests")
    expect(requests.locator("tbody tr")).to_have_count(1)
    expect(requests).to_contain_text("POST /v1/chat/completions")
    expect(page.locator(".tile").filter(has_text="N-gram table")).to_contain_text("25 %")
    assert "secret" not in page.locator("main").inner_text()


def test_now_counts_steps_without_drafts_by_reason(open_page, engine):
    engine.drafting = DraftingReport(num_forwards=4, undrafted=(("unmatched", 1), ("dear", 3)))
    page = open_page()
    send(page, "Hello")
    expect(last_answer(page)).to_contain_text("Hello")
    page.get_by_role("link", name="Now").click()
    table = page.get_by_role("table", name="Steps without a draft since the server started, by reason")
    expect(table.locator("tbody tr")).to_have_text(["dear3", "unmatched1"])


def test_a_server_of_one_model_says_how_to_have_more(open_page):
    page = open_page(path="/ui#models")
    expect(page.get_by_role("row", name="org/fake-model")).to_contain_text("loaded")
    expect(page.get_by_text("--models-dir")).to_be_visible()


def test_a_real_small_model_is_offered_beside_the_demo(open_page, engine):
    page = open_page(path="/ui#models")
    expect(page.get_by_text("--models-dir")).to_be_visible()
    expect(page.get_by_text("smollm2")).to_have_count(0)
    with served(create_app(engine, Settings(served_model_name=("reprise-demo",)))) as address:
        page = open_page(address, path="/ui#models")
        expect(page.get_by_text("reprise serve --model smollm2")).to_be_visible()


def test_connect_shows_the_files_of_agents(open_page):
    page = open_page(path="/ui#connect")
    expect(page.get_by_text("/v1/chat/completions")).to_be_visible()
    page.get_by_label("Client").select_option("claude")
    expect(page.get_by_text("~/.claude/settings.json")).to_be_visible()
    page.get_by_label("Client").select_option("codex")
    page.get_by_label("Model").select_option("alias")
    expect(page.locator("pre")).to_contain_text('model = "alias"')
    expect(page.get_by_text("reprise connect codex")).to_be_visible()


def test_a_key_is_asked_for_and_not_kept_unless_wanted(open_page, engine):
    with served(create_app(engine, Settings(api_key=("right-key",)))) as address:
        page = open_page(address)
        expect(page.get_by_text("asks for an API key")).to_be_visible()
        for key in ("wrong", "right-key"):
            page.get_by_label("Key", exact=True).fill(key)
            page.get_by_role("button", name="Continue").click()
            if key == "wrong":
                expect(page.get_by_role("alert")).to_contain_text("not valid")
        send(page, "Hello")
        expect(last_answer(page)).to_contain_text("user: Hello")
        assert page.evaluate("localStorage.getItem('reprise.key')") is None
        page.reload()
        expect(page.locator("article")).to_have_count(2)
        page.get_by_role("link", name="Connect").click()
        expect(page.get_by_text("Bearer YOUR-API-KEY")).to_be_visible()
        assert "right-key" not in page.content()


def test_a_server_that_is_gone_is_said(open_page, engine):
    with served(create_app(engine, Settings())) as address:
        page = open_page(address)
        expect(page.get_by_label("Message")).to_be_visible()
    send(page, "Hello")
    expect(last_answer(page).get_by_role("alert")).to_contain_text("cannot be reached")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_tab_fits_a_phone_and_names_its_controls(open_page, scheme):
    page = open_page(viewport={"width": 320, "height": 640}, color_scheme=scheme)
    send(page, "Hello " * 50)
    for name in TABS:
        page.get_by_role("link", name=name).click()
        expect(page.get_by_role("link", name=name)).to_have_attribute("aria-current", "page")
        settle(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 320, name
        for control in page.locator("button, input, select, textarea").all():
            named = control.evaluate(
                "(one) => one.ariaLabel || one.textContent.trim() || one.labels[0].textContent"
            )
            assert named, control.evaluate("(one) => one.outerHTML")
    ink, paper = (
        page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor")
    )
    brightness = [sum(map(float, value[4:-1].split(","))) for value in (ink, paper)]
    assert (brightness[0] < brightness[1]) is (scheme == "light")


def test_the_keyboard_is_enough(open_page):
    page = open_page()
    expect(page.get_by_label("Message")).to_be_visible()
    for _ in range(2):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Race")).to_have_attribute("aria-current", "page")
    page.get_by_label("Prompt", exact=True).focus()
    page.keyboard.type("Hello")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".verdict")).to_contain_text("The texts are equal.")
