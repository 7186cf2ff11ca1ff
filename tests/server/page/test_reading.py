"""How the page shows an answer: Markdown, formulas, code, directions, pictures, the colours of sources."""

import base64
import struct
import zlib

import pytest
from chromium import settle
from playwright.sync_api import expect

from reprise.engine.interface.events import DraftingReport
from tests.server.fake_engine import THINKING, says, traces
from tests.server.page.steps import ask, last_answer, send

HEBREW = "\u05e9\u05dc\u05d5\u05dd"


def style_of(locator, name):
    return locator.evaluate(f"(one) => getComputedStyle(one).{name}")


def picture():
    """Return a PNG of one red pixel, as base64."""
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0\xff\0\0")),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode()


def test_headings_are_in_order_of_size_and_in_the_colour_of_the_text(open_page, engine):
    engine.script = says("\n\n".join(f"{'#' * level} Heading {level}" for level in range(1, 7)) + "\n\nText")
    answer = ask(open_page(), "Hello", "Heading 6")
    headings = [answer.locator(f"h{level}") for level in range(1, 7)]
    sizes = [float(style_of(one, "fontSize")[:-2]) for one in headings]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[2] > sizes[5]
    ink = style_of(answer.locator("p"), "color")
    assert [style_of(one, "color") for one in headings] == [ink] * 6


def test_tables_scroll_align_and_never_break_within_a_word(open_page, engine):
    words = "Donaudampfschifffahrtsgesellschaft"
    rows = "\n".join(f"| `{words}` | {words} | {words} | {n} |" for n in range(2))
    engine.script = says(f"| one | two | three | four |\n|:-:|---|---|--:|\n{rows}\n")
    page = open_page(viewport={"width": 390, "height": 844})
    answer = ask(page, "Hello", words)
    table = answer.get_by_role("group", name="Table")
    assert table.evaluate("(one) => one.scrollWidth > one.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert style_of(answer.locator("td").nth(3), "textAlign") == "right"
    assert style_of(answer.locator("td").nth(0), "textAlign") == "center"
    one_line = pytest.approx(answer.locator("td").nth(3).bounding_box()["height"], abs=3)
    assert [one.bounding_box()["height"] for one in answer.locator("tbody td").all()] == [one_line] * 8


def test_tasks_quotes_links_and_directions(open_page, engine):
    engine.script = says(
        "- [x] done\n- [ ] open\n\n> quoted\n\n",
        f"[a link](https://example.com/a) and https://example.com/b\n\n{HEBREW}\n\nHello",
    )
    answer = ask(open_page(), "Hello", "quoted")
    expect(answer.locator("li.task")).to_have_text(["☑ done", "☐ open"])
    assert float(style_of(answer.locator("blockquote"), "borderInlineStartWidth")[:-2]) > 0
    links = answer.locator("a").all()
    assert [one.get_attribute("href") for one in links] == ["https://example.com/a", "https://example.com/b"]
    assert {one.get_attribute("rel") for one in links} == {"noopener noreferrer nofollow"}
    directions = [style_of(answer.get_by_text(text, exact=True), "direction") for text in (HEBREW, "Hello")]
    assert directions == ["rtl", "ltr"]


def test_formulas_are_drawn_and_money_is_not(open_page, engine):
    engine.script = says(
        "Inline $a^2$ and \\(b_1\\), $5 and $10, `$c$`\n\n$$\n\\frac{x}{y}\n$$\n\n\\[ \\sqrt{z} \\]\n\n"
        "$\\href{javascript:window.broken=1}{x}$ $\\undefinedmacro$ $\\includegraphics{https://example.com/a.png}$"
    )
    page = open_page()
    answer = ask(page, "Hello", "$5 and $10")
    drawn = answer.locator(".math[role=img]")
    expect(drawn).to_have_count(6)
    assert [one.get_attribute("aria-label").strip() for one in drawn.all()[:4]] == [
        "a^2",
        "b_1",
        "\\frac{x}{y}",
        "\\sqrt{z}",
    ]
    expect(answer.locator(".math.display .katex-display")).to_have_count(2)
    expect(answer.locator("code")).to_have_text("$c$")
    expect(answer).to_contain_text("\\undefinedmacro")
    assert answer.locator("a, img").count() == 0
    assert page.evaluate(
        "document.fonts.ready.then((fonts) => [...fonts].some((one) => one.status === 'loaded'))"
    )


@pytest.mark.slow
def test_code_has_its_copy_button_in_the_corner_while_it_scrolls(open_page, engine):
    engine.script = says("```python\nprint('" + "long " * 100 + "')\n```")
    answer = ask(open_page(viewport={"width": 800, "height": 600}), "Hello", "long")
    copy = answer.locator(".code").get_by_role("button", name="Copy")
    before = copy.bounding_box()
    code = answer.locator(".code pre")
    code.evaluate("(one) => (one.scrollLeft = 500)")
    assert code.evaluate("(one) => one.scrollLeft") == 500
    assert copy.bounding_box() == before
    corner, button = answer.locator(".code").bounding_box(), copy.bounding_box()
    assert corner["x"] + corner["width"] - button["x"] - button["width"] < 20


@pytest.mark.parametrize("colours", [pytest.param(False, marks=pytest.mark.slow), True])
def test_pictures_of_data_urls_are_shown_and_no_others_asked_for(open_page, engine, colours):
    engine.script = traces(
        (f"![red](data:image/png;base64,{picture()})\n\n", "model"),
        ("![far](https://example.com/a.png) ![drawn](data:image/svg+xml;base64,PHN2Zy8+)", "model"),
    )
    page = open_page()
    if colours:
        page.get_by_label("Show sources").check()
    answer = ask(page, "Hello", "far")
    image = answer.get_by_role("img", name="red")
    assert image.evaluate("(one) => one.decode().then(() => one.naturalWidth)") == 1
    expect(answer.locator("img")).to_have_count(1)
    expect(answer.get_by_role("link", name="far")).to_have_attribute("href", "https://example.com/a.png")


def test_text_has_the_colour_of_what_drafted_it_in_markdown_and_code(open_page, engine):
    engine.script = traces(
        ("# The ", "model"),
        ("quick\n\n**brown", "suffix"),
        (" fox** jumps [over](https://example.com/a.dog) a.", "grammar"),
        ("\n\n| the | lazy |\n|---|---|\n| dog", "suffix"),
        (" | a |\n\n```python\nreturn ", "model"),
        ("cover * jungle\n", "ngram-mod"),
        ("```\n\n- list &", "suffix"),
        (" \\* end $x^2$", "model"),
    )
    engine.drafting = DraftingReport(num_forwards=4)
    page = open_page()
    answer = ask(page, "Hello", "end")
    expect(answer.locator(".math[role=img]")).to_be_visible()
    before = answer.locator(".markdown").text_content()
    page.get_by_label("Show sources").check()
    expect(answer.locator(".from")).not_to_have_count(0)
    by_source = """(all) => all.map((one) => [one.className.split(' ').at(-1), one.textContent.trim()])
        .filter(([, text]) => text)"""
    assert answer.locator(".markdown .from:not(.math)").evaluate_all(by_source) == [
        ["model", "The"],
        ["suffix", "quick"],
        ["suffix", "brown"],
        ["grammar", "fox"],
        ["grammar", "jumps"],
        ["grammar", "over"],
        ["grammar", "a."],
        ["suffix", "the"],
        ["suffix", "lazy"],
        ["suffix", "dog"],
        ["model", "a"],
        ["model", "return"],
        ["ngram-mod", "cover * jungle"],
        ["suffix", "list &"],
        ["model", "* end"],
    ]
    expect(answer.locator(".math.from.model[role=img]")).to_have_count(1)
    assert answer.locator(".markdown").text_content() == before
    # Highlighted code keeps its colours as well.
    expect(answer.locator("code .hljs-keyword .from.model")).to_have_text("return")
    expect(answer.locator(".legend li")).to_have_text(
        ["the model itself", "copied from earlier text", "forced by the grammar", "shared n-gram table"]
    )
    colours = {
        style_of(answer.locator(f".markdown .from.{name}").first, "backgroundColor")
        for name in ("model", "suffix", "grammar", "ngram-mod")
    }
    assert len(colours) == 4
    expect(answer.locator(".figures")).to_contain_text("tokens a forward pass")
    expect(answer.locator(".figures")).to_contain_text("first token after")


@pytest.mark.slow
def test_a_growing_answer_is_drawn_where_it_grows(open_page, engine):
    """What is above stays as it is: a selection in it, for one, is kept."""
    engine.script = says("First\n\n", "Second\n\n", "Third")
    page = open_page()
    ask(page, "Hello", "Third")

    def slowly(engine, job):
        end = says("First\n\n", "Sec")(engine, job)
        engine.wait_for_release(job)
        says("ond\n\nThird")(engine, job)
        return end

    engine.script = slowly
    page.get_by_role("button", name="Retry").click()
    expect(last_answer(page).locator(".block").nth(1)).to_have_text("Sec")
    last_answer(page).locator(".block").first.locator("p").evaluate("(one) => (one.dataset.seen = 'yes')")
    engine.release()
    expect(last_answer(page)).to_contain_text("Third")
    settle(page)
    expect(last_answer(page).locator("p[data-seen=yes]")).to_have_text("First")


def test_what_a_reader_writes_is_shown_as_it_is_with_its_code_as_code(open_page, engine):
    engine.script = says("Yes.")
    page = open_page()
    send(page, "# no *heading*\nnext line\n\n```python\nx = 1\n```\n\n<b>after</b>")
    expect(last_answer(page)).to_contain_text("Yes.")
    mine = page.locator("article.user")
    assert mine.locator("p.plain").all_inner_texts() == ["# no *heading*\nnext line", "<b>after</b>"]
    expect(mine.locator(".code code")).to_have_text("x = 1\n")
    assert mine.locator("h1, em, b").count() == 0


def test_thoughts_have_their_colours_too(open_page, engine):
    engine.tokenizer.markers = THINKING
    engine.script = traces(
        ("<think>", "model"),
        ("Let me ", "suffix"),
        ("see.", "model"),
        ("</think>", "model"),
        ("Yes.", "suffix"),
    )
    page = open_page()
    page.get_by_label("Show sources").check()
    answer = ask(page, "Hello", "Yes.")
    answer.get_by_text("Thinking").click()
    expect(answer.locator(".thought .from.suffix")).to_have_text("Let me ")
    expect(answer.locator(".markdown .from.suffix").last).to_have_text("Yes.")
