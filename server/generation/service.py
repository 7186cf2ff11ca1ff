"""What all routes share: the engine, the settings, and the ways to and from the engine."""

import asyncio
import hashlib
import time
from functools import cached_property

from fastapi import Request

from config.settings import Settings
from server.engine_protocol import EngineProtocol
from server.errors import ModelNotFoundError, UnavailableError, retry_after
from server.generation.event_queue import EventBridge
from server.generation.prompts import PromptEncoder
from server.generation.recorder import Recorder
from server.metrics.registry import Metrics
from server.responses_api.store import ResponseStore


class Service:
    """Made once for each app, on its event loop. recorder: None where nothing is recorded."""

    def __init__(
        self, engine: EngineProtocol, settings: Settings, metrics: Metrics, recorder: Recorder | None = None
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.metrics = metrics
        self.prompts = PromptEncoder(engine, settings.max_rows + settings.max_queue)
        self.event_bridge = EventBridge(asyncio.get_running_loop())
        self.responses = ResponseStore(settings.response_store_bytes)
        metrics.set_response_store(self.responses)
        self.recorder = recorder
        self.created = int(time.time())

    @cached_property
    def model_names(self) -> tuple[str, ...]:
        """The model's own name and its aliases, each once."""
        return tuple(dict.fromkeys((self.engine.info.name, *self.settings.served_model_name)))

    @cached_property
    def fingerprint(self) -> str:
        """The same for the same weights on the same kind of device: then a seed repeats its answer."""
        info = self.engine.info
        known = (info.name, info.fingerprint, info.num_parameters, info.dtype, info.device)
        return "fp_" + hashlib.sha256(repr(known).encode()).hexdigest()[:12]

    def check_ready(self) -> None:
        """Raise UnavailableError unless the engine takes requests."""
        status = self.engine.status()
        later = retry_after(status.retry_after_s)
        match status.state:
            case "loading":
                raise UnavailableError("The model is still loading.", code="loading", headers=later)
            case "draining":
                raise UnavailableError("The server is shutting down.", code="draining", headers=later)
            case "stalled":
                message = f"The engine has stalled: {status.fault}."
                raise UnavailableError(message, code="engine_stalled", headers=later)
            case "dead":
                raise UnavailableError(f"The engine has died: {status.fault}.", code="engine_dead")

    def check_model(self, asked: str | None) -> str:
        """The name that the response gives: the one that was asked for. Raises ModelNotFoundError."""
        if asked is None:
            return self.model_names[0]
        if asked not in self.model_names:
            raise ModelNotFoundError(asked, self.model_names)
        return asked


def service_of(request: Request) -> Service:
    """The service of the app that the request came to."""
    service: Service = request.app.state.service
    return service
