"""The page says what a model's load is at, and where the time goes, before the answer begins."""

from chromium import open_tab
from playwright.sync_api import expect

from reprise.engine.model.hub import HubCache
from tests.end_to_end.answers.test_several_models import Gate, serving
from tests.engine.model_folders import write_models


def test_a_load_is_told_and_then_the_answer_comes(chrome, tmp_path):
    gate = Gate()
    models = write_models(tmp_path / "models")
    with serving(models, HubCache(tmp_path / "hub"), gate) as client:
        gate.opened.clear()
        page = open_tab(chrome).page
        page.goto(str(client.base_url))
        page.get_by_label("Model", exact=True).select_option("three")
        page.get_by_text("Parameters").click()
        page.get_by_label("Maximum tokens").fill("5")
        page.get_by_label("Message", exact=True).fill("a")
        page.get_by_role("button", name="Send", exact=True).click()
        expect(page.locator(".wait")).to_contain_text("Loading three: reading weights, 25 %", timeout=60_000)
        page.get_by_role("link", name="Models").click()
        expect(page.get_by_role("row", name="three")).to_contain_text("reading weights, 25 %", timeout=60_000)
        gate.opened.set()
        page.get_by_role("link", name="Chat").click()
        expect(page.get_by_text("Cut off: it has as many tokens")).to_be_visible(timeout=60_000)
