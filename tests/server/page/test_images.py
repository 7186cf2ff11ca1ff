"""Images are pasted, dropped or attached where the model sees, shown as pictures, and kept in the browser."""

import base64
import io
from dataclasses import replace

import pytest
from chromium import settle
from PIL import Image
from playwright.sync_api import expect

from reprise.server.http import body
from tests.end_to_end.clients.packages import install
from tests.server.fake_engine import SEEING, says
from tests.server.page.steps import ask


def png(size=(64, 64), colour=(255, 0, 0)):
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def settings(settings, monkeypatch):
    monkeypatch.setattr(body, "MAX_BODY_BYTES", 2**22)
    return settings


@pytest.fixture
def sees(engine):
    engine.info = replace(engine.info, vision=SEEING, context_tokens=9000)
    engine.script = says("It is red.")
    return engine


GIVE = """
(field, [kind, data]) => {
  const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
  const carried = new DataTransfer();
  carried.items.add(new File([bytes], "shot.png", { type: "image/png" }));
  const carrier = { bubbles: true, cancelable: true };
  field.dispatchEvent(kind === "paste"
    ? new ClipboardEvent("paste", { ...carrier, clipboardData: carried })
    : new DragEvent("drop", { ...carrier, dataTransfer: carried }));
}
"""


def give(page, how, data):
    """Attach an image by a way that people have."""
    # There once the page knows that the model sees.
    picker = page.get_by_label("Attach images, PDFs or text files")
    expect(picker).to_have_count(1)
    if how == "attach":
        picker.set_input_files({"name": "shot.png", "mimeType": "image/png", "buffer": data})
    else:
        page.get_by_label("Message", exact=True).evaluate(GIVE, [how, base64.b64encode(data).decode()])
    expect(page.get_by_role("list", name="Attached").get_by_role("listitem")).to_contain_text(["shot.png"])


@pytest.mark.parametrize("how", ["attach", "paste", "drop"])
def test_an_image_is_sent_shown_and_kept(open_page, sees, how):
    page = open_page()
    give(page, how, png())
    ask(page, "What is it?", "It is red.")
    picture = page.locator("article.user").get_by_role("img", name="shot.png")
    assert picture.evaluate("async (one) => (await one.decode(), one.naturalWidth)") == 64
    (request,) = sees.requests
    assert [image.grid for image in request.images] == [(4, 4)]
    assert bytes(request.prompt).decode().endswith("]What is it?\n")
    expect(page.get_by_role("list", name="Attached")).to_have_count(0)
    page.reload()
    expect(picture).to_be_visible()
    ask(page, "And now?", "It is red.")
    assert len(sees.requests[-1].images) == 1


def test_a_large_image_is_made_smaller_before_it_is_sent(open_page, sees):
    page = open_page()
    give(page, "attach", png((4096, 1024)))
    ask(page, "What is it?", "It is red.")
    picture = page.locator("article.user").get_by_role("img", name="shot.png")
    assert picture.evaluate("async (one) => (await one.decode(), one.naturalWidth)") == 2048
    assert len(sees.requests) == 1


def test_no_image_is_attached_where_the_model_reads_text(open_page):
    page = open_page()
    picker = page.get_by_label("Attach PDFs or text files")
    picker.set_input_files({"name": "shot.png", "mimeType": "image/png", "buffer": png()})
    told = (
        "shot.png is an image, and this model reads text only. Serve one that sees, such as "
        "mlx-community/Qwen3-VL-4B-Instruct-4bit."
    )
    expect(page.get_by_text(told)).to_be_visible()
    expect(page.get_by_role("list", name="Attached")).to_have_count(0)


def test_a_file_that_only_says_it_is_an_image_is_named(open_page, sees):
    page = open_page()
    picker = page.get_by_label("Attach images, PDFs or text files")
    picker.set_input_files({"name": "shot.png", "mimeType": "image/png", "buffer": b"no image"})
    expect(page.get_by_text("shot.png is an image that cannot be read.")).to_be_visible()
    assert not sees.requests


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_at_images(open_page, sees, scheme):
    axe = (install("axe").parent / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    page = open_page(color_scheme=scheme)
    give(page, "paste", png())
    ask(page, "What is it?", "It is red.")
    give(page, "paste", png())
    settle(page)
    page.evaluate(axe)
    found = page.evaluate("axe.run().then(({ violations }) => violations)")
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []
    assert len(sees.requests) == 1
