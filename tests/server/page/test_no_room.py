"""What the browser's database does not take, or has no more, stays in its tab."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from chromium import settle
from playwright.sync_api import expect

from tests.server.fake_engine import says, wait_midway
from tests.server.page.steps import answers, ask, last_answer, send, wait_for

NO_ROOM_FOR_FILES = """() => {
    globalThis.isFull = true;
    const put = IDBObjectStore.prototype.put;
    IDBObjectStore.prototype.put = function (chat) {
        put.call(this, chat);
        if (globalThis.isFull && chat.messages.some(({ files }) => files?.length)) this.transaction.abort();
    };
}"""
KEPT = """async () => {
    const { readAll } = await import("/ui/chats/database.js");
    return (await readAll()).filter(({ deletedAt }) => !deletedAt).map(({ messages }) => messages.length);
}"""
# Resolves when another tab has said that a chat changed, and what it did has been read.
TOLD = """() => {
    globalThis.told = new Promise((done) => (new BroadcastChannel("reprise.chats").onmessage = done))
        .then(async () => (await import("/ui/chats/database.js")).readAll())
        .then(() => new Promise(requestAnimationFrame));
}"""


def notice(page):
    return page.locator(".toast")


def menu(page, item):
    page.get_by_label("More for Hello").click()
    page.get_by_role("button", name=item).locator("visible=true").click()


@pytest.fixture
def page(open_page, engine):
    """Returns the page with a chat whose second message did not fit into the database."""
    engine.info = replace(engine.info, context_tokens=9000)
    engine.script = says("Yes.")
    page = open_page()
    ask(page, "Hello", "Yes.")
    page.evaluate(NO_ROOM_FOR_FILES)
    page.get_by_label("Attach PDFs or text files").set_input_files(
        {"name": "a.py", "mimeType": "text/x-python", "buffer": b"x = 1\n"}
    )
    return page


def ask_more(page, engine, text, answer):
    engine.script = says(answer)
    ask(page, text, answer)


def sent(engine):
    return [(one["role"], one["content"]) for one in engine.tokenizer.rendered[-1][0]]


WHOLE = [("user", "Hello"), ("assistant", "Yes."), ("user", "a.py:\n\n```\nx = 1\n```\n\nWhat is x?")]


def test_a_message_that_does_not_fit_is_sent_and_stays(page, engine):
    ask_more(page, engine, "What is x?", "One.")
    assert sent(engine) == WHOLE
    expect(notice(page)).to_contain_text("This browser has no room for the conversation")
    expect(page.locator("article")).to_have_count(4)
    page.get_by_text("Parameters").click()
    page.get_by_label("System prompt").fill("Be short.")
    ask_more(page, engine, "And now?", "Still one.")
    assert sent(engine) == [
        ("system", "Be short."),
        *WHOLE,
        ("assistant", "One."),
        ("user", "And now?"),
    ]
    expect(page.locator("article")).to_have_count(6)
    assert page.evaluate(KEPT) == [2]
    # Once there is room, the next change keeps it all.
    page.evaluate("globalThis.isFull = false")
    menu(page, "Pin")
    expect(page.get_by_role("list", name="Pinned")).to_be_visible()
    page.reload()
    expect(page.locator("article")).to_have_count(6)
    page.get_by_text("Parameters").click()
    expect(page.get_by_label("System prompt")).to_have_value("Be short.")


def test_another_tab_does_not_overwrite_what_did_not_fit(page, engine, url):
    ask_more(page, engine, "What is x?", "One.")
    page.evaluate(TOLD)
    other = page.context.new_page()
    other.goto(url)
    expect(answers(other)).to_have_count(1)
    menu(other, "Pin")
    page.evaluate("() => globalThis.told")
    expect(page.locator("article")).to_have_count(4)


def test_what_did_not_fit_is_deleted_and_brought_back(page, engine):
    ask_more(page, engine, "What is x?", "One.")
    menu(page, "Delete")
    expect(page.locator("article")).to_have_count(0)
    assert page.evaluate(KEPT) == []
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("article")).to_have_count(4)
    ask_more(page, engine, "And now?", "Still one.")
    assert sent(engine)[:3] == WHOLE
    menu(page, "Delete")
    expect(page.locator("article")).to_have_count(0)
    page.reload()
    expect(page.get_by_text("No conversations yet.")).to_be_visible()
    assert page.evaluate(KEPT) == []


def test_an_answer_that_is_deleted_while_it_is_written_does_not_come_back(page, engine):
    engine.script = wait_midway
    send(page, "What is x?")
    expect(last_answer(page)).to_contain_text("well")
    menu(page, "Delete")
    wait_for(lambda: engine.cancelled_ids)
    expect(page.get_by_text("No conversations yet.")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(last_answer(page)).to_contain_text("You stopped this answer.")
    expect(page.locator("article")).to_have_count(4)


def test_a_reload_in_the_middle_leaves_what_did_fit(page, engine):
    engine.script = wait_midway
    send(page, "What is x?")
    expect(last_answer(page)).to_contain_text("well")
    page.reload()
    expect(page.locator("article")).to_have_count(2)
    expect(last_answer(page)).to_contain_text("Yes.")


def test_an_import_that_does_not_fit_is_not_called_imported(page, tmp_path):
    said = {"id": "1", "parent": None, "role": "user", "content": "Hello again"}
    small, large = {"messages": [said]}, {"messages": [said | {"files": [{"name": "a.py", "text": "x"}]}]}
    for chats, num_listed, told in (
        ([small], 1, "1 imported."),
        ([large, small], 3, "This browser has no room for the conversation"),
        ([small, small], 5, "2 imported."),
    ):
        file = tmp_path / "chats.json"
        file.write_text(json.dumps({"format": "reprise-chats", "version": 1, "chats": chats}))
        page.get_by_label("Import conversations").set_input_files(file)
        expect(page.locator(".pick").filter(has_text="Hello again")).to_have_count(num_listed)
        settle(page)
        expect(notice(page)).to_contain_text(told)


def test_parameters_that_another_tab_forgot_are_sent(open_page, engine, url):
    page = open_page()
    page.get_by_text("Parameters").click()
    page.get_by_label("System prompt").fill("Be short.")
    wait_for(lambda: page.evaluate(KEPT) == [0])
    # A tab of a later time forgets chats in which nothing was said.
    other = page.context.new_page()
    other.clock.install(time=datetime.now(UTC) + timedelta(minutes=11))
    other.goto(url)
    wait_for(lambda: page.evaluate(KEPT) == [])
    ask(page, "Hello", "Hello")
    assert sent(engine) == [("system", "Be short."), ("user", "Hello")]
    page.reload()
    page.get_by_text("Parameters").click()
    expect(page.get_by_label("System prompt")).to_have_value("Be short.")
