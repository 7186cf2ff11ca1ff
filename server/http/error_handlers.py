"""Turn every exception of the app and the framework into an error response."""

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from server.errors import CLIENT_CLOSED_REQUEST, ApiError, ClientGoneError, NotFoundError, shortened
from server.http.error_format import error_response


def install_error_handlers(app: FastAPI) -> None:
    """Register handlers that answer each exception with an error object in the format of its path."""

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
        else:
            allowed = (fault.headers or {}).get("Allow")
            way_out = f" Use {allowed}." if allowed else ""
            error = NotFoundError(
                f"{request.method} {path}: {fault.detail}.{way_out}",
                code="method_not_allowed",
                headers=fault.headers,
            )
            error.status = fault.status_code
        return await api_error(request, error)
