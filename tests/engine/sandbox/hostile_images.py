"""Files that are made to take memory or time, to crash a decoder, or to be something else than they say."""

import io
import struct
import zipfile
import zlib

from PIL import Image, PngImagePlugin

PNG = b"\x89PNG\r\n\x1a\n"


def chunk(kind, data, length=None):
    """Return a chunk of a PNG. length: what it says, if that is a lie."""
    head = struct.pack(">I", len(data) if length is None else length)
    return head + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, *chunks, depth=8, colour=2, data=b""):
    """Return a PNG whose head says what it likes. data: its pixels, uncompressed."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return PNG + head + b"".join(chunks) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def saved(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def small(kind="PNG", size=(64, 64), mode="RGB", **options):
    return saved(Image.new(mode, size, 90), kind, **options)


def jpeg(*segments):
    """Return a JPEG with more segments after its first marker. segments: (marker, data)."""
    whole = small("JPEG")
    more = b"".join(
        b"\xff" + bytes([mark]) + struct.pack(">H", len(data) + 2) + data for mark, data in segments
    )
    return whole[:2] + more + whole[2:]


def jpeg_of_size(width, height):
    """Return a JPEG whose head says another size than its data has."""
    whole = small("JPEG")
    at = whole.index(b"\xff\xc0") + 5
    return whole[:at] + struct.pack(">HH", height, width) + whole[at + 4 :]


def endless_exif():
    """Return EXIF whose directories point to themselves."""
    entry = struct.pack("<HHII", 0x8769, 4, 1, 8)
    return b"Exif\0\0" + b"II*\0" + struct.pack("<IH", 8, 1) + entry + struct.pack("<I", 8)


def endless_icc():
    """Return a colour profile in 255 parts, each of which is the first."""
    return [(0xE2, b"ICC_PROFILE\0" + bytes([1, 255]) + b"\0" * 60_000) for _ in range(20)]


def animated(kind, num_frames, **options):
    frames = [Image.new("RGB", (64, 64), (one % 256, 0, 0)) for one in range(num_frames)]
    return saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)


def gif(width, height, frame=(0, 0, 1, 1)):
    """Return a GIF with a large screen and a frame of one pixel."""
    screen = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    return screen + b"," + struct.pack("<HHHHB", *frame, 0) + b"\x02\x02\x44\x01\x00;"


def webp_of_size(width, height):
    """Return a lossless WEBP whose head says another size than its data has."""
    whole = small("WEBP", lossless=True)
    bits = (width - 1) | (height - 1) << 14
    at = whole.index(b"VP8L") + 9
    return whole[:at] + struct.pack("<I", bits) + whole[at + 4 :]


def polyglot():
    """Return a PNG that is a ZIP file too."""
    file = io.BytesIO(small())
    file.seek(0, 2)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("a.txt", "a")
    return file.getvalue()


def text_bomb(kind):
    """Return a PNG with a compressed text, or colour profile, of 20 MB."""
    return png(8, 8, chunk(kind, b"a\0\0" + zlib.compress(bytes(20_000_000))), data=b"\0" * 8 * 25)


def many_texts():
    info = PngImagePlugin.PngInfo()
    for index in range(20_000):
        info.add_text(f"key{index}", "a" * 100)
    return small(pnginfo=info)


SHOWN = (
    "a PNG of 49 megapixels with one row",
    "a PNG with 20,000 texts",
    "a JPEG that says 49 megapixels",
    "a JPEG whose directories are endless",
    "a JPEG whose profile is endless",
    "a JPEG that says it is several",
    "a JPEG with 3,000 comments",
    "a WEBP with 300 frames",
    "a GIF with 500 frames",
    "a PNG that is a ZIP file",
)
"""Files of which there is a picture to be shown."""
FILES = {
    "a PNG of 400 megapixels in 400 KB": lambda: png(
        20_000, 20_000, depth=1, colour=0, data=bytes(50_000_000)
    ),
    "a PNG that says 900 megapixels": lambda: png(30_000, 30_000),
    "a PNG that says two thousand million columns": lambda: png(2**31 - 1, 1),
    "a PNG without columns": lambda: png(0, 10),
    "a PNG of 49 megapixels with one row": lambda: png(7000, 7000, data=bytes(21_001)),
    "a PNG cut in the middle": lambda: small()[:80],
    "a PNG with a wrong checksum": lambda: small().replace(b"IDAT", b"IDAT\0", 1),
    "a PNG with a chunk of two gigabytes": lambda: PNG + chunk(b"IHDR", b"\0" * 13, 2**31 - 1),
    "a PNG with a text of 20 MB": lambda: text_bomb(b"zTXt"),
    "a PNG with a profile of 20 MB": lambda: text_bomb(b"iCCP"),
    "a PNG with 20,000 texts": many_texts,
    "a PNG without pixels": lambda: PNG,
    "a PNG a pixel high": lambda: small(size=(60_000, 1)),
    "a JPEG cut in the middle": lambda: small("JPEG")[:300],
    "a JPEG that says 4,000 megapixels": lambda: jpeg_of_size(65_000, 65_000),
    "a JPEG that says 49 megapixels": lambda: jpeg_of_size(7000, 7000),
    "a progressive JPEG of 49 megapixels": lambda: small("JPEG", (7000, 7000), progressive=True),
    "a JPEG whose directories are endless": lambda: jpeg((0xE1, endless_exif())),
    "a JPEG whose profile is endless": lambda: jpeg(*endless_icc()),
    "a JPEG that says it is several": lambda: jpeg((0xE2, b"MPF\0II*\0\x08\0\0\0\xff\xff")),
    "a JPEG with 3,000 comments": lambda: jpeg(*[(0xFE, b"a" * 100)] * 3000),
    "a WEBP cut in the middle": lambda: small("WEBP")[:40],
    "a WEBP that says 268 megapixels": lambda: webp_of_size(16_384, 16_384),
    "a WEBP that says 19 megapixels": lambda: webp_of_size(4400, 4400),
    "a WEBP with 300 frames": lambda: animated("WEBP", 300),
    "a GIF that says 4,000 megapixels": lambda: gif(65_535, 65_535),
    "a GIF whose frame is outside": lambda: gif(10, 10, (60_000, 60_000, 5000, 5000)),
    "a GIF with 500 frames": lambda: animated("GIF", 500),
    "a GIF cut in the middle": lambda: small("GIF", mode="P")[:30],
    "a GIF that is a script": lambda: b"GIF89a/*" + b"*/=1;alert(1)" + b"a" * 2000,
    "a PNG that is a ZIP file": polyglot,
    "a drawing that opens a file": lambda: (
        b'<svg xmlns="http://www.w3.org/2000/svg"><image href="/etc/passwd"/></svg>'
    ),
    "a program in PostScript": lambda: (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run\n"
    ),
    "a BMP": lambda: small("BMP"),
    "a TIFF": lambda: small("TIFF"),
    "a PDF": lambda: b"%PDF-1.7\n1 0 obj <<>> endobj",
    "nothing": lambda: b"",
    "zeros": lambda: bytes(100_000),
}
