"""The page in a real browser, with an engine that says what a test wants."""

import json
from dataclasses import replace

import pytest
from chromium import open_tab, settle
from playwright.sync_api import expect

from reprise.config.settings import Settings
from reprise.engine.interface.events import DraftingReport
from reprise.server.app import create_app
from tests.server.fake_engine import (
    CALLING,
    THINKING,
    says,
    tells,
)
from tests.server.page.steps import ask, last_answer, send
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


def test_parameters_reach_the_engine_and_are_kept(open_page, engine):
    page = open_page()
    page.get_by_text("Parameters").click()
    values = {
        "Temperature": "0.5",
        "Top p": "0.9",
        "Top k": "20",
        "Min p": "0.1",
        "Maximum tokens": "7",
        "Seed": "42",
    }
    for label, value in values.items():
        page.get_by_label(label).fill(value)
    expect(page.get_by_text("Parameters (6 set)")).to_be_visible()
    page.get_by_label("System prompt").fill("Be short.")
    page.get_by_role("combobox", name="Model").select_option("alias")
    send(page, "Hello")
    expect(last_answer(page)).to_contain_text("system")
    (request,) = engine.requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.5, 0.9, 20, 42)
    assert sampling.min_p == 0.1
    assert request.max_tokens == 7
    page.reload()
    page.get_by_text("Parameters").click()
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
    page.get_by_label("Show sources").check()
    settle(page)
    assert page.evaluate("typeof window.broken") == "undefined"


def test_the_browser_refuses_other_scripts_and_addresses(chrome, url):
    page = open_tab(chrome).page
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
    code = last_answer(page).locator(".code")
    code.get_by_role("button", name="Copy").click()
    expect(code.get_by_role("button")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "x = 1\n"
    last_answer(page).locator("footer").get_by_role("button", name="Copy").click()
    expect(last_answer(page).locator("footer")).to_contain_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "Look:\n\n```python\nx = 1\n```\n"


@pytest.mark.slow
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
    last_answer(page).get_by_text("Thinking").click()
    expect(page.get_by_text("Let me see.")).to_be_visible()
    engine.script = says("Sure.")
    send(page, "Really?")
    expect(last_answer(page)).to_contain_text("Sure.")
    said = engine.tokenizer.rendered[-1][0][1]
    assert (said["reasoning_content"], said["content"]) == ("Let me see.", "Yes.")


def test_a_call_is_shown_and_its_result_can_be_given(open_page, engine):
    engine.tokenizer.markers = CALLING
    engine.script = says(*CALLED)
    page = open_page()
    page.get_by_text("Parameters").click()
    page.get_by_label("Tools, as JSON").fill("[{")
    field = page.get_by_label("Message", exact=True)
    field.fill("Look")
    expect(page.get_by_text("What stands as tools under “Parameters” is not JSON.")).to_be_visible()
    field.press("Enter")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    page.get_by_label("Tools, as JSON").fill(json.dumps([TOOL]))
    expect(page.locator("article")).to_have_count(0)
    expect(field).to_have_value("Look")
    field.press("Enter")
    expect(last_answer(page)).to_contain_text("Calls look")
    engine.script = says("I see.")
    send(page, "a cat", label="Result of look")
    expect(last_answer(page)).to_contain_text("I see.")
    roles = [one["role"] for one in engine.tokenizer.rendered[-1][0]]
    assert roles == ["user", "assistant", "tool"]
    assert engine.tokenizer.rendered[-1][0][2]["content"] == "a cat"


@pytest.mark.slow
def test_a_server_of_one_model_says_how_to_have_more(open_page):
    page = open_page(path="/ui#models")
    expect(page.get_by_role("row", name="org/fake-model")).to_contain_text("loaded")
    expect(page.get_by_text("--models-dir")).to_be_visible()


@pytest.mark.slow
def test_a_real_small_model_is_offered_beside_the_demo(open_page, engine):
    page = open_page(path="/ui#models")
    expect(page.get_by_text("--models-dir")).to_be_visible()
    expect(page.get_by_text("smollm2")).to_have_count(0)
    with served(create_app(engine, Settings(served_model_name=("reprise-demo",)))) as address:
        page = open_page(address, path="/ui#models")
        expect(page.get_by_text("reprise serve smollm2")).to_be_visible()


def test_connect_shows_the_files_of_agents(open_page):
    page = open_page(path="/ui#connect")
    expect(page.get_by_text("/v1/chat/completions")).to_be_visible()
    page.get_by_label("Client").select_option("claude")
    expect(page.get_by_text("~/.claude/settings.json")).to_be_visible()
    page.get_by_label("Client").select_option("codex")
    page.get_by_label("Model").select_option("alias")
    expect(page.get_by_label("~/.codex/config.toml")).to_contain_text('model = "alias"')
    expect(page.get_by_label("Notes")).to_contain_text("alias takes 1,000 tokens")
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


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
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
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.get_by_role("link", name="Chat").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Race")).to_have_attribute("aria-current", "page")
    expect(page.get_by_label("Prompt", exact=True)).to_be_focused()
    page.keyboard.type("Hello")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".verdict")).to_contain_text("The texts are equal.")


def test_the_theme_is_switched_and_kept(open_page):
    page = open_page(color_scheme="dark")
    button = page.get_by_role("button", name="Theme: ")

    def is_dark():
        settle(page)
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(float, colour[4:-1].split(","))) < 300

    for name, dark in (("auto", True), ("light", False), ("dark", True)):
        expect(button).to_have_attribute("title", f"Theme: {name}")
        assert is_dark() is dark
        button.click()
    page.emulate_media(color_scheme="light")
    assert not is_dark()
    button.click()
    button.click()
    page.reload()
    expect(button).to_have_attribute("title", "Theme: dark")
    assert is_dark()
    page.get_by_role("link", name="Now").click()
    assert is_dark()


def test_thinking_is_switched_where_the_chat_template_has_a_switch(open_page, engine):
    page = open_page()

    def options(*switches):
        engine.tokenizer.markers = replace(THINKING, thinking_switches=switches)
        page.reload()
        page.get_by_text("Parameters").click()
        expect(page.get_by_label("System prompt")).to_be_visible()
        return page.get_by_label("Thinking").get_by_role("option").all_inner_texts()

    assert options() == []
    assert options("thinking") == ["default", "on", "off"]
    assert options("reasoning_effort") == ["default", "low", "medium", "high"]
    assert options("enable_thinking", "reasoning_effort") == ["default", "on", "off", "low", "medium", "high"]
    for chosen, arguments in {
        "on": {"enable_thinking": True, "thinking": True},
        "off": {"enable_thinking": False, "thinking": False},
        "low": {"reasoning_effort": "low"},
        "": None,
    }.items():
        page.get_by_label("Thinking").select_option(chosen)
        ask(page, f"Chosen: {chosen}.", f"Chosen: {chosen}.")
        assert (engine.tokenizer.rendered[-1][1] or None) == arguments


def test_an_answer_has_the_schema_and_goes_on_without_it(open_page, engine):
    page = open_page()
    page.get_by_text("Parameters").click()
    page.get_by_label("JSON schema").fill("{")
    expect(page.get_by_text("This is not JSON yet.")).to_be_visible()
    page.get_by_label("JSON schema").fill('{"type": "integer"}')
    engine.script = says("1", reason="length")
    send(page, "Hello")
    expect(last_answer(page)).to_contain_text("Cut off")
    page.get_by_label("JSON schema").fill("{")
    page.get_by_role("button", name="Retry").click()
    expect(page.locator(".toast")).to_contain_text("What stands as schema under “Parameters” is not JSON.")
    page.get_by_label("JSON schema").fill('{"type": "integer"}')
    expect(page.locator(".versions")).to_have_count(0)
    expect(page.locator("article")).to_have_count(2)
    expect(last_answer(page)).to_contain_text("Cut off")
    engine.script = says("2")
    page.get_by_role("button", name="Continue").click()
    expect(last_answer(page).locator(".markdown")).to_have_text("12")
    first, rest = engine.requests
    assert "integer" in str(first.grammar)
    assert rest.grammar is None


def test_presets_are_saved_taken_over_and_deleted(open_page, engine):
    page = open_page()
    page.get_by_text("Parameters").click()
    preset = page.get_by_role("combobox", name="Preset")
    for name, system, heat in (("Short", "Be short.", "0.5"), ("__proto__", "Be odd.", "")):
        page.get_by_label("System prompt").fill(system)
        page.get_by_label("Temperature").fill(heat)
        expect(preset).to_have_value("")
        page.get_by_label("Save all of this as").fill(name)
        page.get_by_role("button", name="Save", exact=True).click()
        expect(preset).to_have_value(name)
    page.get_by_role("button", name="New chat").click()
    expect(preset).to_have_value("")
    page.get_by_role("combobox", name="Model").select_option("alias")
    preset.select_option("Short")
    expect(page.get_by_label("System prompt")).to_have_value("Be short.")
    expect(page.get_by_role("combobox", name="Model")).to_have_value("alias")
    ask(page, "Hello", "system: Be short.")
    assert engine.requests[-1].sampling.temperature == 0.5
    page.reload()
    page.get_by_text("Parameters").click()
    expect(preset).to_have_value("Short")
    page.get_by_role("button", name="Delete preset").click()
    expect(preset.locator("option")).to_have_text(["none", "__proto__"])
    # What it set stays.
    expect(page.get_by_label("System prompt")).to_have_value("Be short.")
    preset.select_option("none")
    expect(page.get_by_label("System prompt")).to_have_value("")
