"""Convert every exception of the app and the framework into an error response."""

from collections.abc import Sequence

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route
from starlette.types import Scope

from reprise.server.errors import CLIENT_CLOSED_REQUEST, ApiError, ClientGoneError, NotFoundError, shortened
from reprise.server.http.errors.error_format import error_response


def _allowed_methods(scope: Scope, routes: Sequence[Route]) -> str:
    """Return the methods of all routes with a path; only of those without parameters, if there are any.

    The framework names those of one route alone.
    """
    matching = [route for route in routes if route.matches(scope)[0] is not Match.NONE]
    exact = [route for route in matching if route.path == scope["path"]]
    methods = {method for route in exact or matching for method in route.methods or ()}
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


def install_error_handlers(app: FastAPI, routes: Sequence[Route]) -> None:
    """Register handlers that answer each exception with an error object in the format of its path.

    routes: all routes of the app, to list the methods of a path in the error for a wrong method.
    """

    @app.exception_handler(ApiError)
    async def api_error(request: Request, fault: ApiError) -> Response:
        return error_response(fault, request.scope)

    @app.exception_handler(ClientGoneError)
    async def client_gone(_: Request, __: ClientGoneError) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    @app.exception_handler(HTTPException)
    async def http_exception(request: Request, fault: HTTPException) -> Response:
        path = shortened(request.url.path, 200)
        if fault.status_code == 404:
            error = NotFoundError(
                f"There is no endpoint {request.method} {path}. GET / lists the endpoints.",
                code="unknown_url",
            )
        elif fault.status_code == 405 and "sec-websocket-key" in request.headers:
            # Codex then sends its requests over HTTP at once, rather than after several tries.
            error = NotFoundError(
                f"{path} is not served as a WebSocket. Use HTTP.",
                code="websocket_not_supported",
                headers={"Upgrade": "HTTP/1.1", "Connection": "Upgrade"},
            )
            error.status = 426
        else:
            allowed = _allowed_methods(request.scope, routes)
            error = NotFoundError(
                f"{request.method} {path}: {fault.detail}. Use {allowed}.",
                code="method_not_allowed",
                headers={"Allow": allowed},
            )
            error.status = fault.status_code
        return await api_error(request, error)
