"""The page in a real browser, with the real server on the bundled model beside two others."""

import subprocess
import sys

import pytest
from chromium import open_tab
from playwright.sync_api import expect

from reprise.config.model_settings import BUNDLED_NAME
from tests.end_to_end.conftest import serving
from tests.engine.embedding.encoder_folders import write_encoder
from tests.engine.model_folders import write_models

PROMPT = "Change a from 41 to 8. Answer with the whole file.\n\n```python\na = 41\nflute = 83\ndark = 29\n```"
MAX_RACES = 8


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    models = write_models(folder / "models")
    write_encoder(models / "vectors")
    flags = ("--model", BUNDLED_NAME, "--models-dir", str(models), "--draft-type", "suffix")
    with serving(folder, *flags) as (address, _):
        yield address


@pytest.fixture(scope="module")
def tab(chrome, url):
    tab = open_tab(chrome)
    tab.page.goto(url)
    yield tab
    assert tab.complaints == []
    assert all(one.startswith(url) for one in tab.requests)


def test_a_race_has_equal_texts_and_fewer_forward_passes(tab):
    page = tab.page
    page.get_by_role("link", name="Race").click()
    # What steps cost is not known yet, and on a busy machine the first ones may forbid drafts.
    for _ in range(MAX_RACES):
        page.get_by_label("Prompt", exact=True).fill(PROMPT)
        page.get_by_role("button", name="Race").click()
        expect(page.locator(".verdict")).to_contain_text("The texts are equal.", timeout=60_000)
        plain, drafted = page.locator(".lane").all()
        expect(plain.locator(".figures")).to_contain_text("1.00 tokens a forward pass")
        expect(plain.locator(".markdown .from.suffix")).to_have_count(0)
        # The heads of code are drawn after the verdict.
        expect(drafted.locator(".code-bar")).to_have_count(plain.locator(".code-bar").count())
        assert drafted.locator(".markdown").inner_text() == plain.locator(".markdown").inner_text()
        if num_drafted := drafted.locator(".markdown code .from.suffix").count():
            break
        # The next verdict must not be this one.
        page.reload()
    assert num_drafted > 0


def test_a_model_that_embeds_is_no_model_to_chat_with(tab):
    page = tab.page
    page.get_by_role("link", name="Models").click()
    expect(page.get_by_role("row").filter(has_text="vectors")).to_contain_text("for embeddings")
    page.get_by_role("link", name="Chat").click()
    names = page.get_by_label("Model", exact=True).get_by_role("option").all_inner_texts()
    assert {"reprise-demo", "three"} <= {*names}
    assert "vectors" not in names


def test_a_model_is_loaded_and_unloaded(tab):
    page = tab.page
    page.get_by_role("link", name="Models").click()
    row = page.get_by_role("row").filter(has_text="two")
    expect(row).to_contain_text("unloaded")
    row.get_by_role("button", name="Load").click()
    row.get_by_role("button", name="Unload").click(timeout=60_000)
    expect(row).to_contain_text("unloaded", timeout=60_000)


def test_a_download_that_cannot_be_is_an_error(tab):
    page = tab.page
    page.get_by_role("link", name="Models").click()
    page.get_by_label("Download from the hub").fill("no name of the hub")
    page.get_by_role("button", name="Pull").click()
    expect(page.get_by_role("alert")).to_be_visible(timeout=60_000)
    page.get_by_role("button", name="Dismiss").click()
    tab.complaints[:] = [text for text in tab.complaints if not text.startswith("Failed to load resource")]


def test_connect_shows_what_the_command_prints(tab, url):
    page = tab.page
    page.get_by_role("link", name="Connect").click()
    page.get_by_label("Client").select_option("opencode")
    command = [sys.executable, "-m", "reprise", "connect", "opencode", "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert page.get_by_label("~/.config/opencode/opencode.json").inner_text().strip() in done.stdout
    # The bundled model is served with a context smaller than that agent's first prompt.
    assert page.get_by_label("Notes").inner_text().strip() in done.stderr.removeprefix("reprise: ")


def test_the_demo_answers_its_samples(tab):
    page = tab.page
    page.get_by_role("link", name="Chat").click()
    page.get_by_label("Model", exact=True).select_option("reprise-demo")
    answers = (
        "return humble * 18",
        '{"name": "Ben", "title": "tailor"',
        '"Higix lost the shell',
        "I am the Reprise demo",
    )
    for at, answer in enumerate(answers):
        page.get_by_role("button", name="New chat").click()
        page.locator(".sample").nth(at).click()
        expect(page.locator("article.assistant .markdown")).to_contain_text(answer, timeout=60_000)
        expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0, timeout=60_000)


def test_now_has_counted_it(tab):
    page = tab.page
    page.get_by_role("link", name="Now").click()
    requests = page.get_by_role("table", name="The last requests")
    asked = [one for one in tab.requests if one.endswith("/v1/chat/completions")]
    expect(requests.get_by_role("row", name="chat/completions")).to_have_count(len(asked))
    expect(page.get_by_role("table", name="Drafts since")).to_contain_text("suffix")
