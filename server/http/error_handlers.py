"""Every error of the app, the framework's own included, as an answer that says what is wrong."""

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from server.errors import CLIENT_CLOSED_REQUEST, ApiError, ClientGoneError, NotFoundError, shortened
from server.http.error_format import error_response


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of the app, the framework's own included, an error object of the API at its path."""

    @app.exception_handler(ApiError)
    async def told(request: Request, fault: ApiError) -> Response:
        return error_response(fault, request.scope)

    @app.exception_handler(ClientGoneError)
    async def gone(_: Request, __: ClientGoneError) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    @app.exception_handler(HTTPException)
    async def framework(request: Request, fault: HTTPException) -> Response:
        address = f"{request.method} {shortened(request.url.path, 200)}"
        if fault.status_code == 404:
            error = NotFoundError(
                f"There is nothing at {address}; GET / lists what there is.", code="unknown_url"
            )
        else:
            error = NotFoundError(
                f"{address}: {fault.detail}.", code="method_not_allowed", headers=fault.headers
            )
            error.status = fault.status_code
        return await told(request, error)
