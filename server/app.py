"""Build the ASGI app: routes, error handlers and middleware around an engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from reprise.config.settings import Settings
from reprise.config.version import VERSION
from reprise.server.admin import health, ngram_mod, page
from reprise.server.admin import models as model_routes
from reprise.server.anthropic_api import routes as anthropic
from reprise.server.generation.recorder import Recorder
from reprise.server.generation.service import Service
from reprise.server.http.access import CORS, OPEN_PATHS, Access, load_keys
from reprise.server.http.body import BodyLimit
from reprise.server.http.error_responses import install_error_handlers
from reprise.server.http.executor import CONTROL
from reprise.server.http.openapi import complete_document
from reprise.server.http.request_log import RequestLog, check_request_id
from reprise.server.http.while_loading import EarlyStreams
from reprise.server.llama_server_api import infill, tokens
from reprise.server.metrics.registry import Metrics
from reprise.server.ollama_api import routes as ollama
from reprise.server.openai_api import chat, embeddings
from reprise.server.openai_api.responses import routes as responses
from reprise.server.openai_api.responses.store import STORE_BYTES, ResponseStore

if TYPE_CHECKING:
    from reprise.engine.engine import Engine

WITH_BODIES = (chat, infill, anthropic, responses, ollama, embeddings, tokens, model_routes)
ROUTES = (*WITH_BODIES, ngram_mod, health, page)
BODIES = tuple(body for routes in WITH_BODIES for body in routes.BODIES)


def create_app(models: "Engine", settings: Settings) -> FastAPI:
    """Build the app. The caller starts and stops the models' engine.

    Raises SettingsError if the key file cannot be used or the record file cannot be written.
    """
    keys = load_keys(settings)
    responses = ResponseStore(STORE_BYTES)
    counters = Metrics(models, responses.sizes)
    recorder = Recorder(Path(settings.record)) if settings.record else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.responses = responses
        app.state.service = Service(models, settings, counters, recorder)
        if recorder:
            recorder.start()
        yield
        if recorder:
            await CONTROL.run(recorder.close)
        app.state.service.close()

    # FastAPI's pages of API docs are off: they load scripts from other sites.
    app = FastAPI(
        title="Reprise",
        version=VERSION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(check_request_id)],
    )
    for routes in ROUTES:
        app.include_router(routes.router)

    complete_document(app, models, settings, BODIES, OPEN_PATHS if keys else ())
    all_routes = (*app.routes, *(route for routes in ROUTES for route in routes.router.routes))
    install_error_handlers(app, [route for route in all_routes if isinstance(route, Route)])
    app.add_middleware(BodyLimit)
    app.add_middleware(EarlyStreams)
    app.add_middleware(Access, settings=settings, keys=keys)
    if settings.cors_origin:
        app.add_middleware(CORSMiddleware, allow_origins=settings.cors_origin, **CORS)
    app.add_middleware(RequestLog, metrics=counters)
    return app
