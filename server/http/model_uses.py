"""End a request's use of its model when its response has been sent, however that ends."""

from collections.abc import Callable
from contextlib import ExitStack

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

_USES = "reprise.model_uses"


class ModelUses:
    """ASGI middleware around the routes: after each response calls the functions given to end_later()."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        with ExitStack() as uses:
            scope[_USES] = uses
            await self.app(scope, receive, send)


def end_later(request: HTTPConnection, end: Callable[[], None]) -> None:
    """Call end() once the request's response has been sent, or its client has left."""
    uses: ExitStack = request.scope[_USES]
    uses.callback(end)
