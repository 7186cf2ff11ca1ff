"""The report in a real browser: its figures, pointer and keyboard use, and no network access."""

from math import isnan

import pytest
from chromium import open_tab, settle

from reprise.bench.page import write_page
from tests.bench.documents.made_up import made_up

SECTIONS = [
    "speedup", "answers", "acceptance", "costs", "sweep", "pays", "serve", "replay",
]  # fmt: skip
"""The sections with figures; the last section of a page has the sources."""

HOSTILE = (
    "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'><b>bold</b>{{script}}"
)


class Report:
    """A tab that shows reports. file: the one that it shows."""

    def __init__(self, started):
        self.tab = open_tab(started)
        self.page = self.tab.page
        self.run = self.page.evaluate
        self.file = None

    def open(self, file):
        self.tab.forget()
        self.page.goto(file.as_uri())
        settle(self.page)
        self.file = file

    def resize(self, width):
        self.page.set_viewport_size({"width": width, "height": 900})
        settle(self.page)

    def prefer(self, scheme):
        self.page.emulate_media(color_scheme=scheme)
        settle(self.page)

    @property
    def requests(self):
        return self.tab.requests

    @property
    def complaints(self):
        return self.tab.complaints


@pytest.fixture(scope="module")
def opened(chrome):
    """Start one browser for all tests of this module."""
    return Report(chrome)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Write reports: of one document, of two machines, of decoding only, of an empty and a hostile one."""
    folder = tmp_path_factory.mktemp("reports")
    hostile = made_up(cpu=HOSTILE)
    hostile["command"] = hostile["model"]["name"] = hostile["decode"]["rows"][0]["draft_type"] = HOSTILE
    hostile["decode"]["rows"][0]["workload"] = hostile["sweep"]["points"][0]["drafts"] = HOSTILE
    hostile["decode"]["samples"] = [
        {
            "workload": HOSTILE,
            "draft_type": HOSTILE,
            "prompt": HOSTILE,
            "tokens": [[HOSTILE, HOSTILE], [" end", "model"]],
        }
    ]
    hostile["decode"]["rows"][1].update(draft_model=HOSTILE, strategy=HOSTILE, workload=HOSTILE)
    hostile["serve"]["levels"][0]["name"] = hostile["replay"]["rows"][0]["drafter"] = HOSTILE
    whole = made_up()
    documents = {
        "whole": [whole],
        "two": [whole, made_up(cpu="Another machine", seed=2)],
        "decoding": [{"date": whole["date"], "decode": {"rows": whole["decode"]["rows"][:3]}}],
        "empty": [
            {"decode": {"rows": [], "samples": []}} | {name: {} for name in ("sweep", "serve", "replay")}
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


DRAWN = (
    "new Promise((done) => { const look = () => [...document.querySelectorAll('.chart')].every((one) => "
    "one.querySelector('svg .mark-symbol, svg .mark-rect, svg .mark-line')) ? done() : setTimeout(look, 20); "
    "look(); })"
)
"""Resolves once every chart has marks."""


def drawn(page):
    page.run(DRAWN)
    return page


def choose(page, where, at):
    """Choose an option of a menu, as a user does."""
    page.run(
        f"(() => {{ const menu = document.querySelector('{where}'); menu.selectedIndex = {at}; "
        "menu.dispatchEvent(new Event('input')); menu.dispatchEvent(new Event('change')); })()"
    )
    settle(page.page)
    drawn(page)


def test_every_section_is_drawn_and_nothing_is_asked_for(page, files):
    drawn(page)
    assert page.run("[...document.querySelectorAll('section')].map((one) => one.id)") == [
        *SECTIONS,
        "sources",
    ]
    assert page.requests == [files["whole"].as_uri()]
    assert page.complaints == []
    for name in SECTIONS:
        own = f"document.querySelector('#{name}')"
        assert page.run(f"{own}.querySelectorAll('[aria-label], .token').length") > 3, name
        assert "2026-01-02 on A machine that does not exist" in page.run(f"{own}.textContent"), name
        assert "NaN" not in page.run(f"{own}.innerHTML"), name
        assert "undefined" not in page.run(f"{own}.innerHTML"), name
    assert page.run("document.querySelectorAll('nav a').length") == len(SECTIONS) + 1
    assert page.run("document.querySelectorAll('figure').length") == page.run(
        "document.querySelectorAll('.chart svg').length"
    )


def test_marks_say_their_figures_to_a_screen_reader_and_under_the_pointer(page):
    drawn(page)
    mark = "document.querySelector('#speedup .chart .mark-symbol.layer_3_marks path')"
    assert "auto" in page.run(f"{mark}.getAttribute('aria-label')")
    page.run(f"{mark}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    x, y = page.run(
        f"(() => {{ const box = {mark}.getBoundingClientRect();"
        " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    page.page.mouse.move(x, y)
    settle(page.page)
    tip = page.run("document.querySelector('#vg-tooltip-element').textContent")
    assert "edits_long" in tip
    assert "speedup" in tip
    page.run("scrollTo(0, 0)")


def test_a_legend_names_the_drafters_of_points(page):
    drawn(page)
    legend = "[...document.querySelector('#pays .chart').querySelectorAll('.role-legend-label text')]"
    assert page.run(f"{legend}.map((one) => one.textContent)") == ["controlled", "draft-model"]


@pytest.mark.parametrize("section", ["speedup", "acceptance", "pays"])
def test_a_name_that_is_pressed_in_a_legend_stands_out(page, section):
    drawn(page)
    own = f"document.querySelector('#{section} .chart')"
    faded = f"{own}.querySelectorAll('.role-mark [opacity=\"0.08\"]').length"
    symbol = f"{own}.querySelector('.role-legend-symbol path')"
    page.run(f"{symbol}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    x, y = page.run(
        f"(({{ x, y, width, height }}) => [x + width / 2, y + height / 2])({symbol}.getBoundingClientRect())"
    )
    assert page.run(faded) == 0
    page.page.mouse.click(x, y)
    settle(page.page)
    assert page.run(faded) > 0
    page.open(page.file)


def test_what_is_shown_can_be_chosen(page):
    drawn(page)
    labels = "[...document.querySelectorAll('#speedup .role-axis-label text')].map((one) => one.textContent)"
    before = page.run(labels)
    assert not any(text.endswith("%") for text in before)
    options = page.run(
        "[...document.querySelectorAll('#speedup .vega-bind option')].map((one) => one.textContent)"
    )
    choose(page, "#speedup .vega-bind select", options.index("share of drafted tokens accepted"))
    assert any(text.endswith("%") for text in page.run(labels))
    choose(page, "#speedup .vega-bind select", 0)
    assert page.run(labels) == before


def test_tables_sort_by_the_heading_that_is_pressed(page):
    all_headings = "[...document.querySelectorAll('#speedup th button')]"
    heading = f"{all_headings}.find((one) => one.textContent === 'speedup')"
    at = page.run(f"[...{heading}.closest('tr').children].indexOf({heading}.closest('th'))")
    rows = "[...document.querySelectorAll('#speedup tbody tr')]"
    for is_falling in (True, False):
        page.run(f"{heading}.click()")
        *values, last = page.run(f"{rows}.map((row) => parseFloat(row.children[{at}].textContent))")
        assert values == sorted(values, reverse=is_falling)
        # Missing values stay at the end.
        assert isnan(last)


def test_an_answer_shows_the_source_of_each_token(page):
    samples = made_up()["decode"]["samples"]
    text = page.run("document.querySelector('.tokens').textContent")
    assert text in ["".join(text for text, _ in sample["tokens"]) for sample in samples]
    sources = page.run("[...document.querySelectorAll('.token')].map((one) => one.dataset.source)")
    assert sources in [[source for _, source in sample["tokens"]] for sample in samples]
    page.run("document.querySelector('.answer button').click()")
    chosen = max(set(sources), key=sources.count)
    lit = page.run("[...document.querySelectorAll('.token:not(.dim)')].map((one) => one.dataset.source)")
    assert lit == [chosen] * sources.count(chosen)
    page.run("document.querySelector('.answer button').click()")
    assert page.run("document.querySelectorAll('.token.dim').length") == 0


def test_the_theme_follows_the_system(page):
    color = "getComputedStyle(document.body).backgroundColor"
    light = page.run(color)
    page.prefer("dark")
    drawn(page)
    assert page.run(color) != light
    page.prefer("light")
    assert page.run(color) == light
    page.page.emulate_media(media="print")
    assert page.run(color) == "rgb(255, 255, 255)"
    page.page.emulate_media(media="null")


def test_no_screen_has_to_be_scrolled_sideways(page):
    for width in (320, 768, 1920, 1200):
        page.resize(width)
        assert page.run("document.documentElement.scrollWidth") <= width


def test_documents_of_two_machines_share_a_page(opened, files):
    opened.open(files["two"])
    drawn(opened)
    lines = "document.querySelectorAll('#costs .mark-line path:not([stroke=gray])').length"
    assert opened.run(lines) == 2
    measured = opened.run("document.querySelector('#costs label').textContent")
    assert "A machine that does not exist" in measured
    assert "Another machine" in measured
    options = opened.run("[...document.querySelector('#speedup select').options].map((one) => one.text)")
    assert ["Another machine" in option for option in options] == [False, True]
    first = opened.run("document.querySelector('#speedup script').textContent")
    choose(opened, "#speedup select", 1)
    drawn_rows = "document.querySelector('#speedup script').textContent"
    assert opened.run(drawn_rows) != first
    assert opened.complaints == []


def test_only_sections_with_data_appear(opened, files):
    for name, expected in (
        ("decoding", ["speedup", "acceptance", "sources"]),
        ("empty", ["sources"]),
    ):
        opened.open(files[name])
        found = opened.run("[...document.querySelectorAll('section')].map((one) => one.id)")
        assert found == expected
        assert opened.complaints == []


def test_hostile_texts_stay_texts(opened, files):
    opened.open(files["hostile"])
    drawn(opened)
    assert opened.run("typeof window.broken") == "undefined"
    assert (
        opened.run(
            "document.querySelectorAll('main b, main script:not([type=\"application/json\"]), img').length"
        )
        == 0
    )
    assert opened.run("document.querySelector('.tokens').textContent") == HOSTILE + " end"
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
