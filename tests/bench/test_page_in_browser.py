"""The report in a real browser: its figures, pointer and keyboard use, and no network access."""

import os

import pytest
from chromium import browser, find_browser

from bench.page import write_page
from tests.bench.documents.made_up import made_up

SECTIONS = [
    "speedup", "parity", "answers", "acceptance", "costs", "sweep", "economics", "translation", "peers",
    "replay",
]  # fmt: skip
"""The sections with figures; the last section of a page has the sources."""

HOSTILE = (
    "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'><b>bold</b>{{script}}"
)


@pytest.fixture(scope="module")
def opened():
    """Start one browser for all tests of this module."""
    if find_browser() is None:
        reason = "no Chromium or Chrome is installed here"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with browser() as page:
        yield page


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Write reports: of one document, of two machines, of decoding only, of an empty and a hostile one."""
    folder = tmp_path_factory.mktemp("reports")
    hostile = made_up(cpu=HOSTILE)
    hostile["command"] = hostile["model"]["name"] = hostile["decode"]["rows"][0]["draft_type"] = HOSTILE
    hostile["decode"]["rows"][0]["workload"] = hostile["sweep"]["grid"][0]["workload"] = HOSTILE
    hostile["decode"]["samples"] = [
        {
            "workload": HOSTILE,
            "draft_type": HOSTILE,
            "prompt": HOSTILE,
            "tokens": [[HOSTILE, HOSTILE], [" end", "model"]],
        }
    ]
    hostile["economics"]["advice"] = hostile["translation"]["findings"] = [HOSTILE]
    hostile["translation"]["rows"][0].update(draft_model=HOSTILE, strategy=HOSTILE, workload=HOSTILE)
    hostile["peers"]["rows"][0]["name"] = hostile["replay"]["rows"][0]["drafter"] = HOSTILE
    whole = made_up()
    documents = {
        "whole": [whole],
        "two": [whole, made_up(cpu="Another machine", seed=2)],
        "decoding": [{"date": whole["date"], "decode": {"rows": whole["decode"]["rows"][:3]}}],
        "empty": [
            {"decode": {"rows": [], "samples": []}}
            | {name: {} for name in ("sweep", "economics", "translation", "peers", "replay")}
        ],
        "hostile": [hostile],
    }
    for name, own in documents.items():
        write_page(folder / f"{name}.html", own)
    return {name: folder / f"{name}.html" for name in documents}


@pytest.fixture
def page(opened, files):
    """Open the report of one document on a wide screen; each test must leave it unchanged."""
    if opened.file != files["whole"]:
        opened.prefer("light")
        opened.resize(1200)
        opened.open(files["whole"])
    return opened


def button(where, text):
    """Return a JavaScript expression for the button with this text."""
    return f"[...document.querySelectorAll('{where} button')].find((one) => one.textContent === '{text}')"


def test_every_section_is_drawn_and_nothing_is_asked_for(page, files):
    assert page.run("[...document.querySelectorAll('section')].map((one) => one.id)") == [
        *SECTIONS,
        "sources",
    ]
    assert page.requests == [files["whole"].as_uri()]
    assert page.complaints == []
    for name in SECTIONS:
        own = f"document.querySelector('#{name}')"
        assert page.run(f"{own}.querySelectorAll('.mark').length") > 3, name
        assert "2 January 2026 on A machine that does not exist" in page.run(f"{own}.textContent"), name
        assert "NaN" not in page.run(f"{own}.innerHTML"), name
        assert "undefined" not in page.run(f"{own}.innerHTML"), name
    assert page.run("document.querySelectorAll('nav a').length") == len(SECTIONS) + 1
    # Plain decoding is a line in every plot of speedups.
    assert "plain 1\N{MULTIPLICATION SIGN}" in page.run(
        "document.querySelector('#speedup .reference-name').textContent"
    )


def test_a_legend_switches_its_series_off_and_on(page):
    count = "document.querySelectorAll('#speedup [data-series=suffix]').length"
    suffix = button("#speedup .legend", "suffix")
    before = page.run(count)
    assert before == 6
    page.run(f"{suffix}.click()")
    assert (page.run(count), page.run(f"{suffix}.ariaPressed")) == (0, "false")
    page.run(f"{suffix}.click()")
    assert (page.run(count), page.run(f"{suffix}.ariaPressed")) == (before, "true")


def test_what_is_shown_can_be_chosen(page):
    for text, axis, unit in (
        ("acceptance", "accepted", "%"),
        ("speedup", "plain decoding", "\N{MULTIPLICATION SIGN}"),
    ):
        page.run(f"{button('#speedup .choice', text)}.click()")
        assert axis in page.run("document.querySelector('#speedup .axis-name').textContent")
        assert page.run("document.querySelector('#speedup .value').textContent").endswith(unit)


def test_marks_show_their_figures_on_hover_and_focus(page):
    tip = "document.querySelector('.tip')"
    assert page.run(f"{tip}.hidden")
    x, y = page.run(
        "(() => { const box = document.querySelector('#speedup .mark .shape').getBoundingClientRect();"
        " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    page.point_at(x, y)
    assert page.run(f"{tip}.textContent").startswith("edits_long, auto2.")
    assert not page.run(f"{tip}.hidden")
    page.point_at(1, 400)
    assert page.run(f"{tip}.hidden")
    # The marks are one tab stop; arrow keys move between them.
    assert page.run("document.querySelectorAll('#speedup .plot [tabindex=\"0\"]').length") == 1
    page.run("document.querySelector('#speedup .plot .mark').focus()")
    page.press("ArrowRight")
    assert page.run(f"{tip}.textContent").startswith("edits_long, suffix2.")
    assert page.run("document.activeElement.getAttribute('aria-label')").startswith("edits_long, suffix; 2.")
    page.press("Escape")
    assert page.run(f"{tip}.hidden")


def test_tables_sort_by_the_heading_that_is_pressed(page):
    heading = button("#speedup th", "speedup")
    at = page.run(f"[...{heading}.closest('tr').children].indexOf({heading}.closest('th'))")
    rows = "[...document.querySelectorAll('#speedup tbody tr')]"
    for is_falling in (True, False):
        page.run(f"{heading}.click()")
        *values, last = page.run(f"{rows}.map((row) => parseFloat(row.children[{at}].textContent))")
        assert values == sorted(values, reverse=is_falling)
        # Missing values stay at the end.
        assert last is None


def test_an_answer_shows_the_source_of_each_token(page):
    tokens = made_up()["decode"]["samples"][0]["tokens"]
    assert page.run("document.querySelector('.tokens').textContent") == "".join(text for text, _ in tokens)
    sources = page.run("[...document.querySelectorAll('.token')].map((one) => one.dataset.source)")
    assert sources == [source for _, source in tokens]
    last = f"document.querySelectorAll('.token')[{len(tokens) - 1}]"
    assert f"token {len(tokens)} of {len(tokens)}" in page.run(f"{last}.ariaLabel")
    page.run("document.querySelector('.filter button').click()")
    chosen = max(set(sources), key=sources.count)
    lit = page.run("[...document.querySelectorAll('.token:not(.dim)')].map((one) => one.dataset.source)")
    assert set(lit) == {chosen}
    assert len(lit) == sources.count(chosen)
    page.run("document.querySelector('.filter button').click()")
    assert page.run("document.querySelectorAll('.token.dim').length") == 0


def test_the_theme_follows_the_system_or_the_switch(page):
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.run(colour)
    page.prefer("dark")
    dark = page.run(colour)
    assert light != dark
    for name, expected in (("light", light), ("dark", dark), ("auto", dark)):
        page.run(f"{button('#theme', name)}.click()")
        assert page.run(colour) == expected
    page.prefer("light")
    assert page.run(colour) == light
    page.send("Emulation.setEmulatedMedia", media="print")
    assert page.run(colour) == "rgb(255, 255, 255)"
    page.send("Emulation.setEmulatedMedia", media="")


def test_no_screen_has_to_be_scrolled_sideways(page):
    rights = "[...document.querySelectorAll('.chart')].map((one) => one.getBoundingClientRect().right)"
    for width in (320, 768, 1920, 1200):
        page.resize(width)
        assert page.run("document.documentElement.scrollWidth") <= width
        assert max(page.run(rights)) <= width


def test_documents_of_two_machines_share_a_page(opened, files):
    opened.open(files["two"])
    assert opened.run("document.querySelectorAll('#costs .line').length") == 2
    assert opened.run("document.querySelectorAll('#costs .measured').length") == 2
    choice = "[...document.querySelectorAll('#speedup > .choice button')]"
    assert opened.run(f"{choice}.map((one) => one.textContent)") == [
        "A machine that does not exist",
        "Another machine",
    ]
    opened.run(f"{choice}[1].click()")
    assert "on Another machine" in opened.run("document.querySelector('#speedup .measured').textContent")
    assert opened.complaints == []


def test_only_sections_with_data_appear(opened, files):
    for name, expected in (
        ("decoding", ["speedup", "parity", "acceptance", "sources"]),
        ("empty", ["sources"]),
    ):
        opened.open(files[name])
        found = opened.run("[...document.querySelectorAll('section')].map((one) => one.id)")
        assert found == expected
        assert opened.complaints == []


def test_hostile_texts_stay_texts(opened, files):
    opened.open(files["hostile"])
    some = "[...document.querySelectorAll('.mark')].filter((_, at) => at % 40 === 0)"
    opened.run(f"{some}.forEach((mark) => mark.focus())")
    assert opened.run("typeof window.broken") == "undefined"
    assert opened.run("document.querySelectorAll('main b, main script, img').length") == 0
    assert opened.run("document.querySelector('.tokens').textContent") == HOSTILE + " end"
    assert opened.run("document.querySelector('.advice li').textContent") == HOSTILE
    assert opened.complaints == []
    assert opened.requests == [files["hostile"].as_uri()]
    assert opened.run("document.documentElement.scrollWidth <= innerWidth")


def test_no_other_script_runs_and_no_address_is_reached(opened, files):
    opened.open(files["decoding"])
    opened.run(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.broken = 3'}))"
    )
    opened.run("document.body.insertAdjacentHTML('beforeend', '<p onclick=\"window.broken = 4\">p</p>')")
    opened.run("document.body.lastElementChild.click()")
    assert opened.run("typeof window.broken") == "undefined"
    assert opened.run("fetch('https://example.com/').then(() => 'reached', () => 'refused')") == "refused"
