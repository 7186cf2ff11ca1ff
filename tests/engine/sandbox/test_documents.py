"""Documents become text in a process of their own, whatever they are."""

import base64
from concurrent.futures import ThreadPoolExecutor

import pytest

from reprise.engine.sandbox import child_process
from reprise.engine.sandbox.child_process import ChildError, ChildProcess, Limits, read_document
from reprise.engine.sandbox.child_script import FileError
from tests.engine.sandbox.pdfs import FILES, pdf


def read(data):
    return read_document(base64.b64encode(data).decode())


def test_a_pdf_is_the_text_of_its_pages():
    assert read(pdf("Hello", "World")) == "[page 1]\nHello\n\n[page 2]\nWorld"


def test_a_page_without_text_keeps_its_number():
    assert read(pdf("", "World")) == "[page 1]\n\n\n[page 2]\nWorld"


@pytest.mark.parametrize("text", ["", "naïve\n", "# A heading\n\n- 漢字"])
def test_a_text_file_is_its_text(text):
    assert read(text.encode()) == read(b"\xef\xbb\xbf" + text.encode()) == text


@pytest.mark.parametrize("name", [name for name in FILES if name != "nothing"])
def test_no_file_keeps_the_next_from_being_read(name):
    with pytest.raises(FileError, match=r"^(is|has|cannot|takes) "):
        read(FILES[name]())
    assert read(pdf("Hello")) == "[page 1]\nHello"


def test_what_is_no_base64_says_so():
    with pytest.raises(FileError, match="is not valid base64"):
        read_document("é" * 8)


def test_a_document_that_takes_long_is_ended(monkeypatch):
    hasty = ChildProcess("documents", Limits(0.001, 10.0, 2**30))
    monkeypatch.setattr(child_process, "DOCUMENTS", hasty)
    with pytest.raises(FileError, match=r"cannot be read: it took more than 0\.001 seconds"):
        read(pdf(*["Hello"] * 1000))
    hasty.stop()


def test_a_text_that_speaks_of_pdfs_is_a_text():
    assert read(b"# Headers\n\nA PDF begins with %PDF-1.7.\n").startswith("# Headers")
    assert read(b"\x00" + pdf("Hello")) == "[page 1]\nHello"


def test_an_interrupted_document_is_not_at_fault():
    slow = base64.b64encode(pdf(*["Hello"] * 20_000)).decode()
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(read_document, slow)
        while not reading.done():
            child_process.DOCUMENTS.interrupt()
        with pytest.raises(ChildError):
            reading.result()
    assert read(pdf("Hello")) == "[page 1]\nHello"


@pytest.mark.parametrize(
    "encoding", ["WinAnsiEncoding", "MacRomanEncoding", "UniGB-UCS2-H", "90ms-RKSJ-H", "GBK-EUC-H"]
)
def test_no_encoding_needs_a_file(encoding):
    font = f"/BaseFont /Helvetica /Encoding /{encoding}".encode()
    assert read(pdf("Hello").replace(b"/BaseFont /Helvetica", font)).startswith("[page 1]\n")
