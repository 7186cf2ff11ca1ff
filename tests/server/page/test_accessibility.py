"""axe-core finds nothing on any tab and in any state of the page, in light and in dark."""

import pytest
from chromium import settle
from playwright.sync_api import expect

from reprise.engine.interface.events import DraftingReport
from tests.end_to_end.clients.packages import install
from tests.server.fake_engine import fail_midway, says, traces, wait_midway
from tests.server.page.steps import ask, last_answer, reads, send

ALL_KINDS = (
    "# One\n\n## Two\n\n### Three\n\n- [x] task\n\n> quote\n\n[link](https://example.com/) `code` $x^2$\n\n"
    "| a | b |\n|---|--:|\n| 1 | 2 |\n\n```python\n# comment\nx = 'text' + str(1)\n```\n\n$$\\frac{1}{2}$$\n"
)


@pytest.fixture(scope="module")
def axe():
    return (install("axe").parent / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_axe_finds_nothing(open_page, engine, axe, scheme, size):
    page = open_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    is_phone = size[0] < 800

    def check(state):
        settle(page)
        page.evaluate(axe)
        found = page.evaluate("axe.run().then(({ violations }) => violations)")
        told = [
            (one["id"], one["impact"], [node["html"][:200] for node in one["nodes"]][:3]) for one in found
        ]
        assert told == [], state

    expect(page.locator(".sample").first).to_be_visible()
    check("empty")
    engine.script = reads(0.4)
    send(page, "Hello")
    expect(page.locator(".wait")).to_contain_text("40 %")
    check("reading")
    page.keyboard.press("Escape")
    expect(last_answer(page)).to_contain_text("You stopped")
    engine.script = wait_midway
    send(page, "Hello")
    expect(last_answer(page)).to_contain_text("well")
    check("streaming")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Continue")).to_be_visible()
    engine.script = fail_midway
    ask(page, "And now?", "on fire")
    check("stopped and failed")
    engine.script = traces(
        (ALL_KINDS[:60], "suffix"), (ALL_KINDS[60:150], "ngram-mod"), (ALL_KINDS[150:], "grammar")
    )
    page.get_by_label("Show sources").check()
    ask(page, "Everything", "Three")
    expect(last_answer(page).locator(".math.display .katex")).to_be_visible()
    check("everything in colours")
    page.get_by_text("Parameters").click()
    page.get_by_role("button", name="Edit").last.click()
    check("parameters and editor")
    page.get_by_label("Save all of this as").fill("Mine")
    page.get_by_role("button", name="Save", exact=True).first.click()
    expect(page.get_by_role("button", name="Delete preset")).to_be_enabled()
    check("a preset")
    page.get_by_text("Parameters").click()
    if is_phone:
        page.get_by_role("button", name="Chats").click()
    page.get_by_label("More for").first.click()
    check("list")
    engine.script = says("The same")
    engine.drafting = DraftingReport(
        num_forwards=4, why_undrafted="nothing matched", undrafted=(("dear", 3),)
    )
    for tab in ("race", "now", "models", "connect"):
        page.goto(f"{page.url.split('#')[0]}#{tab}")
        expect(page.locator(f"main.tab-{tab} section")).to_be_visible()
        if tab == "race":
            send(page, "Hello", "Prompt")
            expect(page.locator(".verdict")).to_contain_text("equal")
        check(tab)
