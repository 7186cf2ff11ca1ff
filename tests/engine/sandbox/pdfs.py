"""PDFs, and files that are made to take memory or time, or to be something else than they say."""

import zlib

FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"


def pdf(*pages, content=None, end=b""):
    """Return a PDF with a page for each text. content: of all pages, compressed, in place of texts."""
    parts = [b"<< /Type /Catalog /Pages 2 0 R >>", b"", FONT]
    kids = []
    for text in pages:
        stream = f"BT /F 12 Tf 20 100 Td ({text}) Tj ET".encode()
        head = f"<< /Length {len(stream)} >>" if content is None else content[0]
        parts.append(
            head.encode() + b"\nstream\n" + (stream if content is None else content[1]) + b"\nendstream"
        )
        page = f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] /Contents {len(parts)} 0 R"
        parts.append(f"{page} /Resources << /Font << /F 3 0 R >> >> >>".encode())
        kids.append(f"{len(parts)} 0 R")
    parts[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>".encode()
    made, places = b"%PDF-1.7\n", []
    for number, part in enumerate(parts, 1):
        places.append(len(made))
        made += f"{number} 0 obj\n".encode() + part + b"\nendobj\n"
    start, num = len(made), len(parts) + 1
    made += f"xref\n0 {num}\n0000000000 65535 f \n".encode()
    made += b"".join(f"{place:010} 00000 n \n".encode() for place in places)
    trailer = f"trailer\n<< /Size {num} /Root 1 0 R ".encode() + end + b">>\n"
    return made + trailer + f"startxref\n{start}\n%%EOF\n".encode()


def packed(data, num_times=1):
    """Return the dictionary and the bytes of a stream that was compressed several times."""
    for _ in range(num_times):
        data = zlib.compress(data, 9)
    filters = " ".join(["/FlateDecode"] * num_times)
    return f"<< /Filter [{filters}] /Length {len(data)} >>", data


FILES = {
    "nothing": lambda: b"",
    "a program": lambda: b"\x7fELF" + bytes(range(256)),
    "a PDF that ends after its head": lambda: b"%PDF-1.7\n",
    "a PDF that is cut off": lambda: pdf("one", "two")[:-200],
    "a page without text": lambda: pdf(""),
    "a password": lambda: pdf(
        "a", end=b"/Encrypt << /Filter /Standard /V 4 /R 4 /O (a) /U (b) /P -4 >> /ID [(a) (b)]"
    ),
    "100 MB of spaces": lambda: pdf("a", content=packed(b" " * 10**8)),
    "100 MB in a kilobyte": lambda: pdf("a", content=packed(b" " * 10**8, num_times=3)),
    "brackets in a million levels": lambda: pdf("a", content=packed(b"BT " + b"[" * 10**6)),
    "pages that are their own parents": lambda: pdf("a").replace(b"/Kids [5 0 R]", b"/Kids [2 0 R]"),
    "too much text": lambda: b"word " * 10**6,
}
