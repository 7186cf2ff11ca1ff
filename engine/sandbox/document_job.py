"""Extract the text of documents, with pypdf for PDFs: the job "documents" of child_script.py."""

import codecs
import contextlib
import encodings
import io
import pkgutil
from collections.abc import Callable
from typing import Any

from pypdf import PdfReader, PdfWriter
from pypdf.errors import DependencyError, FileNotDecryptedError

from reprise.engine.sandbox.child_script import FileError, check_length, from_base64

HEADER, HEADER_BYTES = b"%PDF-", 1024
"""What a PDF has among its first bytes."""


Call = dict[str, Any]


def make_handler() -> Callable[[Call], Call]:
    """Return a function that extracts text; see extract()."""
    _import_readers()

    def handle(call: Call) -> Call:
        try:
            return {"attached": extract(from_base64(call.pop("attached", b""))).encode()}
        except FileError as fault:
            return {"complaint": str(fault)}
        except (DependencyError, FileNotDecryptedError):
            return {"complaint": "is encrypted: send it without protection"}
        except MemoryError:
            return {"complaint": "takes too much memory to read; send fewer pages"}
        # The file comes from a client, and pypdf raises almost anything.
        except Exception as fault:
            return {"complaint": f"cannot be read: {str(fault).rstrip('.') or type(fault).__name__}"[:500]}

    return handle


def extract(data: bytes) -> str:
    """Return the text of a PDF, with a line `[page N]` before each page, or of a text file in UTF-8.

    Raises FileError if there is none or too much, and anything that pypdf raises.
    """
    is_pdf = data.lstrip().startswith(HEADER)
    if not is_pdf and (text := _as_text(data)) is not None:
        check_length(len(text))
        return text
    if HEADER not in data[:HEADER_BYTES]:
        raise FileError("is neither a PDF nor a text in UTF-8, which are the kinds that can be read")
    pages, length = [], 0
    for number, page in enumerate(PdfReader(io.BytesIO(data)).pages, 1):
        # It may have halves of characters, which no other text may have.
        text = page.extract_text().strip().encode("utf-8", "replace").decode()
        length += len(text)
        check_length(length)
        pages.append(f"[page {number}]\n{text}")
    if not length:
        raise FileError("has no text; if it was scanned, send its pages as images to a model that sees")
    return "\n\n".join(pages)


def _as_text(data: bytes) -> str | None:
    """Return the text of a text file; None for other bytes."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _import_readers() -> None:
    """Read a PDF to import what that needs: later no file can be opened."""
    file = io.BytesIO()
    writer = PdfWriter()
    writer.add_blank_page(8, 8)
    writer.write(file)
    PdfReader(file).pages[0].extract_text()
    for encoding in pkgutil.iter_modules(encodings.__path__):
        # Not every system has every one.
        with contextlib.suppress(LookupError):
            codecs.lookup(encoding.name)
