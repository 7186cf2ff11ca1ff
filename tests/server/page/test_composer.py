"""The field at the bottom of a chat, what stands around it, and the race."""

import json
import re
from dataclasses import replace

import pytest
from chromium import settle
from playwright.sync_api import expect

from reprise.config.settings import Settings
from reprise.engine.interface.events import DraftingReport
from reprise.server.app import create_app
from tests.engine.sandbox.pdfs import pdf
from tests.machine import allowed_s
from tests.server.fake_engine import says, tells, traces
from tests.server.page.steps import ask, last_answer, send
from tests.server.served import served

PAST = "a conversation of so many messages"


def import_chat(page, num_messages, content, tmp_path):
    messages = [
        {
            "id": str(at),
            "parent": str(at - 1) if at else None,
            "role": ("user", "assistant")[at % 2],
            "content": content,
            "end": "done",
        }
        for at in range(num_messages)
    ]
    path = tmp_path / "chat.json"
    chat = {"title": PAST, "messages": messages, "leaf": str(num_messages - 1)}
    path.write_text(json.dumps({"format": "reprise-chats", "version": 1, "chats": [chat]}))
    page.get_by_label("Import conversations").set_input_files(path)
    expect(page.locator("article")).to_have_count(num_messages)


def test_it_has_the_focus_grows_and_stays_at_the_bottom(open_page):
    page = open_page()
    field = page.get_by_label("Message", exact=True)
    expect(field).to_be_focused()
    small = field.bounding_box()["height"]
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    for _ in range(4):
        page.keyboard.press("Shift+Enter")
    settle(page)
    assert field.bounding_box()["height"] > 2 * small
    ask(page, "\n".join("line" for _ in range(100)), "line")
    settle(page)
    window, form = page.viewport_size["height"], page.locator(".composer").bounding_box()
    assert window - form["y"] - form["height"] < 40
    assert abs(field.bounding_box()["height"] - small) < 2
    expect(field).to_be_focused()


def test_a_reopened_chat_is_at_its_end_and_keys_are_cheap(open_page, tmp_path):
    page = open_page()
    import_chat(page, 400, "**bold** and `code`. " * 5, tmp_path)
    page.reload()
    expect(page.locator("article")).to_have_count(400)
    settle(page)
    left = "(one) => one.scrollHeight - one.scrollTop - one.clientHeight"
    assert page.locator(".scroller").evaluate(left) < 5
    # What a key does, handlers, drawing and layout, in processor time of the page.
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy_s():
        return {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}[
            "TaskDuration"
        ]

    page.get_by_label("Message", exact=True).focus()
    page.keyboard.type("warm")
    before, num_keys = busy_s(), 60
    page.keyboard.type("x" * num_keys)
    settle(page)
    assert (busy_s() - before) / num_keys < allowed_s(0.005)
    page.locator(".scroller").evaluate("(one) => (one.scrollTop = 0)")
    expect(page.locator("article").first).to_be_in_viewport()


@pytest.mark.slow
def test_whoever_reads_above_is_left_there(open_page, engine, tmp_path):
    page = open_page()
    import_chat(page, 30, "long\n\n" * 2, tmp_path)

    def slowly(engine, job):
        says("begins")(engine, job)
        engine.wait_for_release(job)
        return says("\n\nends")(engine, job)

    engine.script = slowly
    send(page, "More")
    expect(last_answer(page)).to_contain_text("begins")
    page.locator(".scroller").evaluate("(one) => (one.scrollTop = 0)")
    settle(page)
    engine.release()
    expect(last_answer(page)).to_contain_text("ends")
    settle(page)
    assert page.locator(".scroller").evaluate("(one) => one.scrollTop") == 0


def test_text_files_are_attached(open_page, engine, tmp_path):
    page = open_page()
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "b.bin").write_bytes(b"\x00\xff")
    page.get_by_label("Attach PDFs or text files").set_input_files([tmp_path / "a.py", tmp_path / "b.bin"])
    expect(page.get_by_text("b.bin is neither a PDF")).to_be_visible()
    expect(page.get_by_role("list", name="Attached").get_by_role("listitem")).to_contain_text(["a.py"])
    ask(page, "What is x?", "What is x?")
    ((message,), _) = engine.tokenizer.rendered[-1]
    assert message["content"] == "a.py:\n\n```\nx = 1\n```\n\nWhat is x?"
    expect(page.locator("article.user summary")).to_have_text("a.py")
    expect(page.get_by_role("list", name="Attached")).to_have_count(0)


def test_a_pdf_is_attached_sent_as_text_and_kept(open_page, engine):
    page = open_page()
    sent = {"name": "a.pdf", "mimeType": "application/pdf", "buffer": pdf("Hello")}
    page.get_by_label("Attach PDFs or text files").set_input_files(sent)
    expect(page.get_by_role("list", name="Attached").get_by_role("img")).to_have_count(0)
    ask(page, "What is it?", "What is it?")
    ((message,), _) = engine.tokenizer.rendered[-1]
    assert message["content"] == "[document a.pdf]\n[page 1]\nHello\n\nWhat is it?"
    page.reload()
    with page.expect_download() as saved:
        page.locator("article.user").get_by_role("link", name="a.pdf").click()
    assert saved.value.path().read_bytes() == pdf("Hello")
    page.get_by_label("Attach PDFs or text files").set_input_files(sent | {"buffer": pdf("")})
    send(page, "And now?")
    expect(page.get_by_role("alert").first).to_contain_text("has no text; if it was scanned")


def test_a_file_that_cannot_be_read_is_taken_out_of_its_message(open_page, engine):
    name = f"scan_{'x' * 60}.pdf"
    page = open_page(viewport={"width": 390, "height": 640})
    files = [
        {"name": name, "mimeType": "application/pdf", "buffer": pdf("")},
        {"name": "a.py", "mimeType": "text/x-python", "buffer": b"x = 1\n"},
    ]
    page.get_by_label("Attach PDFs or text files").set_input_files(files)
    send(page, "What is x?")
    expect(page.get_by_role("alert")).to_contain_text("has no text; if it was scanned")
    send(page, "And now?")
    expect(page.get_by_role("alert")).to_have_count(2)
    page.get_by_role("button", name="Edit").first.click()
    editor = page.locator(".editor")
    expect(editor.get_by_role("listitem")).to_contain_text([name, "a.py"])
    assert page.locator(".scroller").evaluate("(one) => one.scrollWidth <= one.clientWidth")
    editor.get_by_role("button", name=f"Remove {name}").click()
    expect(editor.get_by_role("listitem")).to_contain_text(["a.py"])
    # The file alone is a message, too.
    page.get_by_label("Changed message").fill("")
    expect(editor.get_by_role("button", name="Send")).to_be_enabled()
    editor.get_by_role("button", name="Remove a.py").click()
    expect(editor.get_by_role("button", name="Send")).to_be_disabled()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Edit").first.click()
    editor.get_by_role("button", name=f"Remove {name}").click()
    editor.get_by_role("button", name="Send").click()
    expect(last_answer(page)).to_contain_text("What is x?")
    ((message,), _) = engine.tokenizer.rendered[-1]
    assert message["content"] == "a.py:\n\n```\nx = 1\n```\n\nWhat is x?"
    page.reload()
    expect(page.locator("article.user summary")).to_have_text("a.py")
    expect(page.get_by_role("link", name=name)).to_have_count(0)
    page.get_by_role("button", name="Earlier version").click()
    expect(page.get_by_role("link", name=name)).to_have_count(1)


@pytest.mark.slow
def test_a_sample_is_sent_with_a_click(open_page, engine):
    page = open_page()
    page.locator(".sample").first.click()
    expect(last_answer(page)).to_contain_text("Explain in three short paragraphs")
    with served(create_app(engine, Settings(served_model_name=("reprise-demo",)))) as address:
        demo = open_page(address)
        demo.locator(".model select").select_option("reprise-demo")
        expect(demo.get_by_text("This is the demo model")).to_be_visible()
        demo.locator(".sample").first.click()
        expect(last_answer(demo)).to_contain_text("user: ")


@pytest.mark.parametrize(
    ("num_more", "kind", "words"),
    [
        pytest.param(0, "equal", "No difference", marks=pytest.mark.slow),
        (5, "loss", "A loss: with drafts"),
        (-5, "gain", "times as fast"),
    ],
)
def test_a_race_says_gain_and_loss_plainly_and_in_other_colours(open_page, engine, num_more, kind, words):
    """The engine's clock counts a tenth of a second for each token that it reports."""
    lengths = iter((10, 10 + num_more))

    def race(engine, job):
        runs = (("same answer", "model"), *[("", "model")] * (next(lengths) - 1))
        return traces(*runs)(engine, job)

    engine.script, engine.drafting = race, DraftingReport(num_drafted=8, num_accepted=4)
    page = open_page(path="/ui#race")
    expect(page.get_by_label("Prompt", exact=True)).to_have_value(re.compile("Return the full file.$"))
    send(page, "Hello", "Prompt")
    verdict = page.locator(f".verdict.{kind}")
    expect(verdict).to_contain_text(words)
    expect(verdict).to_contain_text("The texts are equal.")
    expect(verdict).to_contain_text("drafted tokens were right")
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert (verdict.evaluate("(one) => getComputedStyle(one).color") == ink) is (kind == "equal")
    page.get_by_role("link", name="Connect").click()
    expect(page.get_by_label("Client")).to_be_visible()
    page.get_by_role("link", name="Race").click()
    expect(verdict).to_contain_text(words)


@pytest.mark.slow
def test_a_race_with_different_texts_is_a_fault(open_page, engine):
    numbers = iter("12")
    engine.script = lambda engine, job: tells(f"answer {next(numbers)}")(engine, job)
    page = open_page(path="/ui#race")
    send(page, "Hello", "Prompt")
    expect(page.locator(".verdict.different")).to_contain_text("The texts differ.")


VERDICT = """async (lanes) => {
    const { verdict } = await import("/ui/tabs/race.js");
    const answer = ([predicted_ms, forwards, draft_n]) => ({
        content: "a", reasoning: "", calls: [],
        timings: { predicted_ms, forwards, draft_n, draft_n_accepted: Math.floor(draft_n / 2) },
    });
    const { kind, text } = verdict({ plain: answer(lanes[0]), drafts: answer(lanes[1]) });
    return [kind, text];
}"""
BEYOND = "Fewer forward passes explain 1.50 of it; the rest is noise of the machine."
NOISE = "No difference but noise of the machine: the clock says "
# (milliseconds, forward passes, drafted tokens) without drafts and with them; the kind; what is said of time.
VERDICTS = {
    "gain": ((1000, 60, 0), (500, 20, 40), "gain", "With drafts 2.00 times as fast."),
    "more than the passes bring": (
        (1000, 60, 0),
        (500, 40, 40),
        "gain",
        f"With drafts 2.00 times as fast. {BEYOND}",
    ),
    "no pass fewer": ((1000, 60, 0), (500, 60, 40), "equal", f"{NOISE}2.00 times as fast."),
    "longer without drafts": ((1000, 60, 0), (1200, 60, 0), "equal", f"{NOISE}20 % longer."),
    "loss": ((1000, 60, 0), (1200, 59, 40), "loss", "A loss: with drafts the answer took 20 % longer."),
}


def test_a_race_leads_with_forward_passes_and_names_noise(open_page):
    page = open_page()
    for plain, drafts, kind, words in VERDICTS.values():
        lead = f"{drafts[1]} forward passes with drafts, 60 without."
        right = f"The texts are equal. {drafts[2] // 2} of {drafts[2]} drafted tokens were right."
        assert page.evaluate(VERDICT, [plain, drafts]) == [kind, f"{lead} {words} {right}"]


KEYS = """async ([isPhone, keys]) => {
    const match = globalThis.matchMedia;
    globalThis.matchMedia = (query) => (query.includes("coarse") ? { matches: isPhone } : match(query));
    const { isSending } = await import("/ui/chat/composer.js");
    const sent = keys.map((one) => isSending({ key: "Enter", ...one }));
    globalThis.matchMedia = match;
    return sent;
}"""


def test_enter_sends_but_not_in_a_composition_nor_on_a_phone(open_page):
    keys = [{}, {"keyCode": 13}, {"shiftKey": True}, {"isComposing": True}, {"keyCode": 229}, {"key": "a"}]
    page = open_page()
    assert page.evaluate(KEYS, [False, keys]) == [True, True, False, False, False, False]
    assert page.evaluate(KEYS, [True, keys]) == [False] * 6


def test_limits_are_said_before_a_message_is_sent(open_page):
    page = open_page()
    field = page.get_by_label("Message", exact=True)
    field.fill("word " * 100)
    expect(page.get_by_text("the model reads")).to_have_count(0)
    field.fill("word " * 1000)
    expect(page.get_by_text("about 1250 tokens; the model reads 1000.")).to_be_visible()
    field.fill("word")
    expect(page.get_by_text("the model reads")).to_have_count(0)
    limit = "PDFs, text files of up to 1 MiB"
    expect(page.get_by_role("button", name="Attach")).to_have_attribute("title", limit)


WARNING = """async ([most, images]) => {
    const { warningOf } = await import("/ui/runs/request.js");
    const files = Array.from({ length: images }, () => ({ name: "a.png", url: "data:image/png;base64," }));
    const model = { context_length: 100, vision: { max_images: most } };
    return warningOf(model, { system: "" }, [{ content: "before", files }, { content: "now", files }]);
}"""


def test_more_images_than_a_request_may_have_are_said_before_they_are_sent(open_page):
    page = open_page()
    assert page.evaluate(WARNING, [4, 2]) == ""
    assert page.evaluate(WARNING, [4, 3]) == "This conversation has 6 images; a request may have 4."


def test_more_bytes_than_a_request_may_have_are_said_before_they_are_sent(open_page):
    page = open_page()
    warning = page.evaluate("""async () => {
        const { warningOf } = await import("/ui/runs/request.js");
        const files = [{ name: "a.pdf", url: "data:application/pdf;base64,".padEnd(2 ** 24) }];
        return [1, 2].map((num) => warningOf({}, { system: "" }, Array(num).fill({ content: "now", files })));
    }""")
    assert warning == [
        "",
        "This conversation has 32 MiB of files; a request may have 31. Attach less, or begin a new chat.",
    ]


def test_how_much_of_the_context_a_chat_takes(open_page, engine):
    engine.script = says("x" * 100)
    page = open_page()
    expect(page.locator(".context")).to_have_count(0)
    ask(page, "Hello", "xxx")
    # "user: Hello\n", and the answer; a token is a byte.
    expect(page.locator(".context")).to_have_text("112 of 1K tokens")
    title = "112 of the 1,000 tokens that the model reads at once"
    expect(page.locator(".context")).to_have_attribute("title", title)
    engine.script = says("x" * 800)
    ask(page, "More", "xxx")
    expect(page.locator(".context.full")).to_have_text("935 of 1K tokens")
    page.reload()
    expect(page.locator(".context.full")).to_have_text("935 of 1K tokens")
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".context")).to_have_count(0)


def test_timings_of_a_file_may_be_anything(open_page):
    count = 'async (timings) => (await import("/ui/runs/answer.js")).numTokens({ timings })'
    page = open_page()
    full = {"cache_n": 1, "prompt_n": 2, "predicted_n": 3}
    assert page.evaluate(count, full) == 6
    for timings in (None, {}, full | {"cache_n": "1"}, full | {"prompt_n": None}):
        assert page.evaluate(count, timings) == 0


def test_a_long_context_meter_leaves_room_for_the_button_on_a_phone(open_page, engine):
    engine.info = replace(engine.info, context_tokens=262_144)
    engine.script = says("Yes.")
    page = open_page(viewport={"width": 320, "height": 640})
    ask(page, "x" * 12_345, "Yes.")
    expect(page.locator(".context")).to_contain_text("12.4K of 262.1K")
    assert page.locator(".composer-bar").evaluate("(one) => one.scrollWidth <= one.clientWidth")
