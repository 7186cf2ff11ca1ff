"""Conversations on the page outlive tabs, reloads, edits, stops, faults and other tabs of the browser."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from reprise.config.settings import Settings
from reprise.server.app import create_app
from tests.server.fake_engine import fail_midway, says, wait_first, wait_midway
from tests.server.page.steps import answers, ask, last_answer, send, wait_for
from tests.server.served import served


def listed(page):
    return page.get_by_role("navigation", name="Conversations").get_by_role("listitem").locator(".pick")


def shown(page):
    """Return all messages that a reader sees, answers with what is said about their end."""
    return page.locator(
        "article .plain, article .markdown, article .ending, article .fault"
    ).all_inner_texts()


def menu(page, name, item):
    page.get_by_label(f"More for {name}").click()
    page.get_by_role("button", name=item).locator("visible=true").click()


def test_an_answer_goes_on_while_another_tab_of_the_page_is_open(open_page, engine):
    engine.script = wait_midway
    page = open_page()
    send(page, "Hello")
    expect(last_answer(page)).to_contain_text("well")
    page.get_by_role("link", name="Now").click()
    expect(page.get_by_text("The last requests")).to_be_visible()
    page.get_by_role("link", name="Chat").click()
    expect(last_answer(page)).to_contain_text("well")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.get_by_role("link", name="Models").click()
    engine.release()
    page.get_by_role("link", name="Chat").click()
    expect(last_answer(page)).to_contain_text("well user: Hello")
    assert engine.cancelled_ids == []


@pytest.mark.slow
def test_an_answer_goes_on_while_another_chat_is_shown(open_page, engine):
    engine.script = wait_midway
    page = open_page()
    send(page, "First")
    expect(last_answer(page)).to_contain_text("well")
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("article")).to_have_count(0)
    engine.script = says("Second answer")
    ask(page, "Second", "Second answer")
    engine.release()
    listed(page).filter(has_text="First").click()
    expect(last_answer(page)).to_contain_text("well user: First")
    listed(page).filter(has_text="Second").click()
    expect(last_answer(page)).to_contain_text("Second answer")


def test_a_reload_in_the_middle_keeps_what_came_and_offers_to_go_on(open_page, engine):
    engine.script = wait_midway
    page = open_page()
    send(page, "Hello")
    expect(last_answer(page)).to_contain_text("well")
    page.reload()
    expect(last_answer(page)).to_contain_text("Cut off: the page was closed")
    expect(last_answer(page).locator(".markdown")).to_have_text("well")
    wait_for(lambda: engine.cancelled_ids)
    engine.script = says("and good.")
    page.get_by_role("button", name="Continue").click()
    expect(last_answer(page).locator(".markdown")).to_have_text("well and good.")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    messages = engine.tokenizer.rendered[-1][0]
    assert [(one["role"], one["content"]) for one in messages] == [("user", "Hello"), ("assistant", "well ")]
    page.reload()
    expect(page.locator("article")).to_have_count(2)
    assert shown(page) == ["Hello", "well and good."]


def test_a_stopped_answer_says_so_and_can_be_continued_or_tried_again(open_page, engine):
    engine.script = wait_midway
    page = open_page()
    send(page, "Hello")
    expect(last_answer(page)).to_contain_text("well")
    page.get_by_role("button", name="Stop").click()
    expect(last_answer(page)).to_contain_text("You stopped this answer.")
    wait_for(lambda: engine.cancelled_ids)
    engine.script = says("done.")
    page.get_by_role("button", name="Continue").click()
    expect(last_answer(page).locator(".markdown")).to_have_text("well done.")
    expect(page.get_by_role("button", name="Continue")).to_have_count(0)
    engine.script = says("Another one.")
    page.get_by_role("button", name="Retry").click()
    expect(last_answer(page).locator(".markdown")).to_have_text("Another one.")
    expect(last_answer(page)).to_contain_text("2/2")
    page.get_by_role("button", name="Earlier version").click()
    expect(last_answer(page).locator(".markdown")).to_have_text("well done.")


@pytest.mark.slow
def test_an_answer_that_is_cut_off_by_its_length_says_so(open_page, engine):
    engine.script = says("one two", reason="length")
    page = open_page()
    ask(page, "Count", "Cut off: it has as many tokens as it may have.")
    engine.script = says(" three")
    page.get_by_role("button", name="Continue").click()
    expect(last_answer(page).locator(".markdown")).to_have_text("one two three")
    expect(last_answer(page).locator(".ending")).to_have_count(0)


def test_a_fault_is_shown_and_the_chat_goes_on(open_page, engine):
    engine.script = fail_midway
    page = open_page()
    ask(page, "Hello", "the roof is on fire")
    expect(last_answer(page)).to_contain_text("well")
    expect(page.get_by_role("button", name="Continue")).to_be_visible()
    engine.script = says("Here again.")
    page.get_by_role("button", name="Retry").click()
    expect(last_answer(page)).to_contain_text("Here again.")


@pytest.mark.slow
def test_a_lost_connection_is_told_in_our_words(open_page, engine):
    engine.script = wait_midway
    with served(create_app(engine, Settings())) as address:
        page = open_page(address)
        send(page, "Hello")
        expect(last_answer(page)).to_contain_text("well")
    expect(last_answer(page)).to_contain_text("Cut off: the connection to the server was lost.")
    expect(page.get_by_role("button", name="Retry")).to_be_visible()


def test_an_edit_can_be_undone_and_earlier_versions_stay(open_page):
    page = open_page()
    ask(page, "One", "user: One")
    ask(page, "Two", "user: Two")
    page.get_by_role("button", name="Edit").first.click()
    expect(page.get_by_label("Changed message")).to_have_value("One")
    expect(page.get_by_label("Changed message")).to_be_focused()
    expect(page.locator("article")).to_have_count(4)
    page.keyboard.press("Escape")
    expect(page.get_by_label("Changed message")).to_have_count(0)
    page.get_by_role("button", name="Edit").first.click()
    page.get_by_label("Changed message").fill("Three")
    page.get_by_label("Changed message").press("Enter")
    expect(last_answer(page)).to_contain_text("user: Three")
    expect(page.locator("article")).to_have_count(2)
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("article")).to_have_count(4)
    expect(last_answer(page)).to_contain_text("user: Two")
    page.get_by_role("button", name="Later version").click()
    expect(page.locator("article")).to_have_count(2)
    page.reload()
    expect(page.locator("article")).to_have_count(2)
    page.get_by_role("button", name="Earlier version").click()
    expect(last_answer(page)).to_contain_text("user: Two")


def test_an_edit_cannot_be_undone_once_its_chat_is_left_or_goes_on(open_page):
    page = open_page()
    undo = page.get_by_role("button", name="Undo")

    def edit(text):
        page.get_by_role("button", name="Edit").first.click()
        page.get_by_label("Changed message").fill(text)
        page.get_by_label("Changed message").press("Enter")
        expect(last_answer(page)).to_contain_text(f"user: {text}")
        expect(undo).to_have_count(1)

    ask(page, "One", "user: One")
    edit("Two")
    ask(page, "Three", "user: Three")
    expect(undo).to_have_count(0)
    edit("Four")
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("article")).to_have_count(0)
    expect(undo).to_have_count(0)
    # A deleted chat comes back from any other.
    ask(page, "Five", "user: Five")
    menu(page, "Four", "Delete")
    listed(page).first.click()
    page.get_by_role("button", name="New chat").click()
    undo.click()
    expect(last_answer(page)).to_contain_text("user: Four")


def test_chats_are_listed_searched_renamed_and_deleted_with_a_way_back(open_page, engine):
    page = open_page()
    engine.script = says("The capital is Paris.")
    ask(page, "About France", "Paris")
    page.get_by_role("button", name="New chat").click()
    engine.script = says("It is Rome.")
    ask(page, "About Italy", "Rome")
    expect(listed(page)).to_have_text(["About Italy", "About France"])
    page.get_by_label("Search conversations").fill("paris")
    expect(listed(page)).to_have_text(["About France"])
    page.get_by_label("Search conversations").fill("")
    menu(page, "About France", "Rename")
    expect(page.get_by_label("Name of the chat")).to_be_focused()
    page.keyboard.type("Capitals")
    page.get_by_label("Name of the chat").press("Enter")
    expect(listed(page)).to_have_text(["About Italy", "Capitals"])
    menu(page, "About Italy", "Delete")
    expect(listed(page)).to_have_text(["Capitals"])
    expect(page.locator("article")).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(listed(page)).to_have_text(["About Italy", "Capitals"])
    expect(last_answer(page)).to_contain_text("Rome")
    page.reload()
    expect(listed(page)).to_have_text(["About Italy", "Capitals"])


@pytest.mark.slow
def test_chats_are_exported_and_imported(open_page, engine, tmp_path):
    page = open_page()
    engine.script = says("```python\nx = 1\n```")
    ask(page, "Code, please", "x = 1")
    engine.script = says("Other code")
    page.get_by_role("button", name="Retry").click()
    expect(last_answer(page)).to_contain_text("Other code")
    with page.expect_download() as markdown:
        menu(page, "Code, please", "Export as Markdown")
    text = Path(markdown.value.path()).read_text()
    assert text == "# Code, please\n\n## You\n\nCode, please\n\n## Model\n\nOther code\n"
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    assert re.fullmatch(r"reprise-chats-\d{4}-\d\d-\d\d\.json", download.value.suggested_filename)
    exported = Path(download.value.path())
    held = json.loads(exported.read_text())
    assert (held["format"], held["version"], len(held["chats"])) == ("reprise-chats", 1, 1)

    # In another browser, with both versions.
    other = open_page()
    other.get_by_label("Import conversations").set_input_files(exported)
    expect(listed(other)).to_have_text(["Code, please"])
    expect(last_answer(other)).to_contain_text("Other code")
    other.get_by_role("button", name="Earlier version").click()
    expect(last_answer(other)).to_contain_text("x = 1")
    for name, content, told in (
        ("bad.json", "{", "not JSON"),
        ("other.json", "[]", "not an export"),
        ("new.json", '{"format": "reprise-chats", "version": 2, "chats": []}', "newer Reprise"),
        (
            "hurt.json",
            '{"format": "reprise-chats", "version": 1, "chats": [{"messages": [{}]}]}',
            "cannot be read",
        ),
    ):
        (tmp_path / name).write_text(content)
        other.get_by_label("Import conversations").set_input_files(tmp_path / name)
        expect(other.get_by_text(told)).to_be_visible()
    expect(listed(other)).to_have_count(1)


def test_two_tabs_of_a_browser_do_not_overwrite_each_other(open_page, engine, url):
    page = open_page()
    ask(page, "Hello", "user: Hello")
    other = page.context.new_page()
    other.goto(url)
    expect(last_answer(other)).to_contain_text("user: Hello")

    # One writes: the other is told, cannot write, and then has it too.
    engine.script = wait_midway
    send(page, "From the first tab")
    expect(other.get_by_text("Another tab of this browser writes")).to_be_visible()
    other.get_by_label("Message", exact=True).fill("Too early")
    expect(other.get_by_role("button", name="Send", exact=True)).to_be_disabled()
    engine.release()
    expect(last_answer(other)).to_contain_text("well user: Hello")
    expect(last_answer(page)).to_contain_text("well user: Hello")

    # Both change it: each change is made to what is there, not to what a tab remembers.
    engine.script = says("Yes.")
    send(other, "From the second tab")
    expect(answers(page)).to_have_count(3)
    menu(page, "Hello", "Rename")
    page.get_by_label("Name of the chat").fill("Two tabs")
    page.get_by_label("Name of the chat").press("Enter")
    expect(listed(other)).to_have_text(["Two tabs"])
    for one in (page, other):
        one.reload()
        expect(answers(one)).to_have_count(3)
        expect(listed(one)).to_have_text(["Two tabs"])


@pytest.mark.slow
def test_what_is_written_stays_until_it_is_sent(open_page):
    page = open_page()
    field = page.get_by_label("Message", exact=True)
    field.fill("half a thought")
    page.get_by_role("link", name="Connect").click()
    expect(page.get_by_label("Client")).to_be_visible()
    page.get_by_role("link", name="Chat").click()
    expect(field).to_have_value("half a thought")
    page.reload()
    expect(field).to_have_value("half a thought")


def test_what_is_written_stays_while_it_is_continued(open_page, engine):
    page = open_page()
    engine.script = wait_midway
    send(page, "Hello")
    expect(last_answer(page)).to_contain_text("well")
    page.keyboard.press("Escape")
    engine.script = wait_first
    page.get_by_role("button", name="Continue").click()
    expect(last_answer(page).locator(".wait")).to_be_visible()
    expect(last_answer(page).locator(".markdown")).to_have_text("well")
    engine.release()
    expect(last_answer(page).locator(".wait")).to_have_count(0)


def test_parameters_are_those_of_their_chat(open_page, engine):
    engine.script = says("Yes.")
    page = open_page()
    page.get_by_text("Parameters").click()
    page.get_by_label("System prompt").fill("Be short.")
    ask(page, "In the first", "Yes.")
    page.get_by_role("button", name="New chat").click()
    expect(page.get_by_label("System prompt")).to_have_value("")
    ask(page, "In the second", "Yes.")
    listed(page).get_by_text("In the first").click()
    expect(page.get_by_label("System prompt")).to_have_value("Be short.")
    ask(page, "And again", "Yes.")
    # The first answer of this chat says "Yes.", too.
    assert engine.wait_until(lambda: len(engine.requests) == 3, 30)
    systems = [
        [one["content"] for one in messages if one["role"] == "system"]
        for messages, _ in engine.tokenizer.rendered[-3:]
    ]
    assert systems == [["Be short."], [], ["Be short."]]
    page.reload()
    page.get_by_text("Parameters").click()
    expect(page.get_by_label("System prompt")).to_have_value("Be short.")


def test_a_title_is_text_without_marks(open_page):
    title = """async (content) => {
        const { newChat, titleOf, withMessage } = await import("/ui/chats/tree.js");
        return titleOf(withMessage(newChat(), { id: "1", parent: null, role: "user", content }));
    }"""
    page = open_page()
    for content, wanted in {
        "# Fix **this** `a_b_c` now": "Fix this a_b_c now",
        "- see [the page](https://example.com)\n> or *that*": "see the page or that",
        "```python\nx = 2 * 3 * 4\n```": "x = 2 * 3 * 4",
        "snake_case_name and 2 * 3": "snake_case_name and 2 * 3",
        "***": "***",
    }.items():
        assert page.evaluate(title, content) == wanted


def test_a_notice_leaves_unless_a_reader_is_at_it(open_page):
    page = open_page()
    page.clock.install()
    ask(page, "Hello", "user: Hello")
    menu(page, "Hello", "Delete")
    notice = page.locator(".toast")
    notice.hover()
    page.clock.run_for(60_000)
    expect(notice).to_be_visible()
    page.mouse.move(0, 0)
    page.clock.run_for(16_000)
    expect(notice).to_have_count(0)


def test_a_chat_with_two_messages_of_one_id_is_imported_whole(open_page, tmp_path):
    said = [
        {"id": "1", "parent": None, "role": "user", "content": "One"},
        {"id": "2", "parent": "1", "role": "assistant", "content": "Two"},
        {"id": "2", "parent": "2", "role": "assistant", "content": "Twice"},
        {"id": "3", "parent": "4", "role": "user", "content": "Three"},
        {"id": "4", "parent": "3", "role": "user", "content": "Four"},
        {"id": "5", "parent": "1", "role": "assistant", "content": "Other"},
    ]
    chat = {"title": "Odd", "createdAt": 1, "changedAt": 1, "leaf": "2", "messages": said}
    file = tmp_path / "odd.json"
    file.write_text(json.dumps({"format": "reprise-chats", "version": 1, "chats": [chat]}))
    page = open_page()
    page.get_by_label("Import conversations").set_input_files(file)
    expect(last_answer(page)).to_contain_text("Two")
    page.get_by_role("button", name="Later version").click()
    expect(last_answer(page)).to_contain_text("Other")
    page.get_by_role("button", name="Earlier version").click()
    expect(last_answer(page)).to_contain_text("Twice")
    page.reload()
    expect(last_answer(page)).to_contain_text("Twice")


def test_a_chat_with_fields_of_any_type_is_imported_and_drawn(open_page, tmp_path):
    none = {"toString": 1, "valueOf": 1}
    timings = {
        "predicted_per_second": "fast",
        "forwards": [1],
        "predicted_n": 7,
        "stopped": none,
        "gate": {"undrafted": none},
    }
    odd = {"id": "1", "parent": None, "role": "assistant", "content": "One", "end": "done"}
    texts = dict.fromkeys(("reasoning", "fault", "tool_call_id"), none)
    parts = {"files": [{"url": none}], "calls": [none], "trace": [none, None]}
    told = {"predicted_per_second": 12, "gate": {"undrafted": "nothing matched"}}
    said = [
        odd | texts | parts | {"timings": timings},
        odd | {"id": "2", "parent": "1", "content": "Two", "timings": "fast"},
        odd | {"id": "3", "parent": "2", "content": "Three", "timings": told},
    ]
    file = tmp_path / "odd.json"
    page = open_page()

    def import_chats(*chats):
        file.write_text(json.dumps({"format": "reprise-chats", "version": 1, "chats": chats}))
        page.get_by_label("Import conversations").set_input_files(file)

    import_chats(None)
    expect(page.get_by_text("A conversation in this file has messages that cannot be read.")).to_be_visible()
    import_chats({"title": none, "messages": said, "parameters": {"system": none}})
    for _ in range(2):
        expect(answers(page)).to_have_count(3)
        expect(answers(page).first).to_contain_text("One")
        expect(last_answer(page).locator(".figures")).to_have_text("12 tokens/s · no drafts: nothing matched")
        page.reload()


def test_an_answer_can_be_edited_and_gone_on_with(open_page, engine):
    engine.script = says("The capital is Paris.")
    page = open_page()
    ask(page, "Hello", "Paris")
    last_answer(page).get_by_role("button", name="Edit").click()
    expect(page.get_by_label("Changed message")).to_have_value("The capital is Paris.")
    page.get_by_label("Changed message").fill("The capital is")
    page.get_by_role("button", name="Save").click()
    expect(last_answer(page)).to_contain_text("You changed this answer.")
    assert len(engine.requests) == 1
    engine.script = says(" Rome.")
    page.get_by_role("button", name="Continue").click()
    expect(last_answer(page).locator(".markdown")).to_have_text("The capital is Rome.")
    expect(last_answer(page)).to_contain_text("2/2")
    sent = [(one["role"], one["content"]) for one in engine.tokenizer.rendered[-1][0]]
    assert sent == [("user", "Hello"), ("assistant", "The capital is")]
    page.reload()
    expect(last_answer(page).locator(".markdown")).to_have_text("The capital is Rome.")
    page.get_by_role("button", name="Earlier version").click()
    expect(last_answer(page).locator(".markdown")).to_have_text("The capital is Paris.")


def test_each_chat_has_an_address(open_page, url):
    page = open_page()
    ask(page, "First", "user: First")
    expect(page).to_have_url(re.compile(r"#/chat/\w+$"))
    first = page.url
    page.get_by_role("button", name="New chat").click()
    page.get_by_label("Message", exact=True).fill("half a thought")
    page.go_back()
    expect(last_answer(page)).to_contain_text("user: First")
    page.go_forward()
    expect(page.get_by_label("Message", exact=True)).to_have_value("half a thought")
    ask(page, "Second", "user: Second")
    second = page.url
    assert first != second
    page.get_by_role("link", name="Connect").click()
    page.go_back()
    expect(last_answer(page)).to_contain_text("user: Second")
    page.goto(first)
    page.reload()
    expect(last_answer(page)).to_contain_text("user: First")
    # A tab of its own.
    other = page.context.new_page()
    other.goto(first)
    expect(last_answer(other)).to_contain_text("user: First")
    # A deleted chat is nowhere, and what is said next does not bring it back.
    menu(page, "First", "Delete")
    expect(page.locator("article")).to_have_count(0)
    page.go_back()
    expect(page).not_to_have_url(first)
    expect(page.locator("article")).to_have_count(0)
    page.goto(first)
    page.reload()
    expect(page.locator("article")).to_have_count(0)
    ask(page, "Third", "user: Third")
    expect(listed(page)).to_have_text(["Third", "Second"])
    expect(page.locator(".versions")).to_have_count(0)
    page.goto(f"{url}/#/chat/ffff")
    expect(page.get_by_text("This conversation is not in this browser.")).to_be_visible()
    page.get_by_role("button", name="Close", exact=True).click()
    # What names nothing of the page is a chat; so is what every object has.
    for name in ("nothing", "toString", "/chat/", "/chat/%00"):
        page.goto(f"{url}/#{name}")
        page.reload()
        expect(page.get_by_label("Message", exact=True)).to_be_visible()
        expect(page).to_have_url(re.compile(r"#/chat/\w+$"))
    expect(page.get_by_text("is not in this browser")).to_have_count(0)
    page.goto(f"{url}/#race")
    page.reload()
    expect(page.get_by_label("Prompt", exact=True)).to_be_visible()
    expect(page).to_have_url(f"{url}/#race")


def test_chats_stand_under_their_days_and_pinned_ones_first(open_page):
    headings = """async () => {
        const { headingOf } = await import("/ui/chat/list.js");
        const ago = (days) => headingOf({ changedAt: new Date().setHours(12) - days * 86400000 });
        const others = [{ changedAt: new Date(2024, 1, 29) }, { isPinned: true }].map(headingOf);
        return [...[0, -1, 1, 2, 6].map(ago), ...others];
    }"""
    page = open_page()
    days = ["Today", "Today", "Yesterday", "Last 7 days", "Last 7 days"]
    assert page.evaluate(headings) == [*days, "February 2024", "Pinned"]
    for text in ("One", "Two"):
        page.get_by_role("button", name="New chat").click()
        ask(page, text, f"user: {text}")
    expect(listed(page)).to_have_text(["Two", "One"])
    menu(page, "One", "Pin")
    expect(listed(page)).to_have_text(["One", "Two"])
    expect(page.get_by_role("list", name="Pinned").locator(".pick")).to_have_text(["One"])
    expect(page.get_by_role("list", name="Today").locator(".pick")).to_have_text(["Two"])
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    page.reload()
    expect(listed(page)).to_have_text(["One", "Two"])
    menu(page, "One", "Unpin")
    expect(listed(page)).to_have_text(["Two", "One"])
    other = open_page()
    other.get_by_label("Import conversations").set_input_files(download.value.path())
    expect(other.get_by_role("list", name="Pinned").locator(".pick")).to_have_text(["One"])
