"""No answer keeps the page from being drawn, now or after a reload."""

import pytest
from playwright.sync_api import expect

from tests.server.fake_engine import says
from tests.server.page.steps import ask, last_answer, send

# What took marked seconds or its whole stack, as long as an answer may be.
HOSTILE = {
    "quotes": "> " * 3000 + ">",
    "many quotes": "> " * 25_000,
    "lists": "+ " * 25_000,
    "numbers": "1. " * 16_000,
    "formulas": "$$a" * 16_000,
    "open formulas": "\\[ " * 16_000,
    "formulas on lines": "$$a\n" * 12_000,
    "emphasis": "_a_b" * 12_500,
    "ends of emphasis": "a_" * 25_000,
    "brackets": "[a](" * 12_500,
    "code": "`a``" * 12_500,
}
# Counts the characters of all blocks that are read while a text grows.
READ = """async ([text, chunk]) => {
    const { Marked } = await import("/ui/vendor/marked.js");
    const { lexedFurther } = await import("/ui/reading/bounded.js");
    const marked = new Marked({ gfm: true });
    let before = null, numRead = 0;
    for (let end = chunk; end < text.length + chunk; end += chunk) {
        const now = lexedFurther(marked, text.slice(0, end), before);
        const old = new Set(before?.tokens);
        numRead += now.tokens.filter((one) => !old.has(one)).reduce((sum, { raw }) => sum + raw.length, 0);
        before = now;
    }
    return [numRead, before.tokens.map(({ raw }) => raw).join("")];
}"""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("quotes", "formulas", "emphasis") else pytest.mark.slow)
        for name in HOSTILE
    ],
)
def test_what_cannot_be_drawn_within_a_bound_is_plain_text(open_page, engine, name):
    text = HOSTILE[name]
    engine.script = says(text[:10_000], text[10_000:])
    page = open_page()
    send(page, "Hello")
    plain = last_answer(page).locator(".as-written").last
    expect(plain).to_be_attached()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    # The first marks of quotes and lists are drawn as such.
    assert text.strip().endswith(plain.text_content().strip())
    assert len(plain.text_content()) > 0.9 * len(text)
    page.reload()
    expect(last_answer(page).locator(".as-written").last).to_be_attached()
    page.get_by_role("button", name="New chat").click()
    engine.script = says("Still here.")
    ask(page, "And now?", "Still here.")


def test_what_is_finished_is_not_read_again_while_an_answer_grows(open_page):
    text = "".join(f"Paragraph {n} *of* many.\n\n- a list\n- of two\n\n" for n in range(100))
    num_read, read = open_page().evaluate(READ, [text, 10])
    assert read == text
    # Each block is read again for each piece that it grows by: blocks of 50 characters, pieces of 10.
    assert num_read < 5 * len(text)
