"""The page at /ui: its static files and their routes."""

from functools import cache
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import RedirectResponse, Response

from reprise.server.errors import NotFoundError

KINDS = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "woff2": "font/woff2",
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_file(name: str) -> Response:
    """Return a file of the page. Raises NotFoundError."""
    held = _held()
    if name not in held:
        raise NotFoundError(f"The page has no file '{name}'.", code="not_found")
    return Response(held[name], media_type=KINDS[name.rpartition(".")[2]], headers=HEADERS)


@cache
def _held() -> dict[str, bytes]:
    """Read all files once, by their paths in the folder page. Only these are served."""
    root = Path(__file__).parents[1] / "page"
    found = [path for path in root.rglob("*.*") if path.suffix[1:] in KINDS]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}


router = APIRouter()


@router.get("/ui", include_in_schema=False)
async def index() -> Response:
    """Return the page."""
    return page_file("index.html")


@router.get("/ui/{name:path}", include_in_schema=False)
async def file(name: str) -> Response:
    """Return one of the page's files; for none, lead to the page, whose files are found from /ui."""
    return page_file(name) if name else RedirectResponse("../ui")
