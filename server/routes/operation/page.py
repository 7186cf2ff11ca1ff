"""GET /ui and its files: the page for people. It is static; what it shows comes from the API."""

from fastapi import APIRouter
from fastapi.responses import RedirectResponse, Response

from reprise.server.page.files import page_file

router = APIRouter()


@router.get("/ui", include_in_schema=False)
async def index() -> Response:
    """Return the page."""
    return page_file("index.html")


@router.get("/ui/{name:path}", include_in_schema=False)
async def file(name: str) -> Response:
    """Return one of the page's files; for none, lead to the page, whose files are found from /ui."""
    return page_file(name) if name else RedirectResponse("../ui")
