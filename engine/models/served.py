"""A model that requests may ask for, loaded or not."""

import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import isfinite

from reprise.engine.interface.models import ModelEntry, ModelInfo, ModelUse
from reprise.engine.memory.between_models import Holder
from reprise.engine.models.catalogue import FoundModel
from reprise.engine.models.model_engine import ModelEngine


@dataclass(eq=False)
class ServedModel:
    """A model that requests may ask for. KnownModels.lock guards the fields that other threads use.

    found: the model on disk. max_context_tokens: as its settings say. shows_images: whether it may be shown
        images.
    engine: exists while the weights are loaded, or requests wait for them.
    is_loaded: whether the weights are in memory. progress, phase: the completed share of a load, and its
        present stage; None unless the model is loading.
    budget: the memory that the model holds; None while it is not loaded.
    num_uses: requests that were given the model. waiting: requests that wait for the model.
    leaving: who waits for the model to be unloaded; until then no request is given it.
    used_at: when the model was last asked for or left, by time.monotonic(). keep_s: for how many seconds to
        keep it without requests, as its last use said.
    """

    found: FoundModel
    max_context_tokens: int | None = None
    shows_images: bool = True
    engine: ModelEngine | None = None
    is_loaded: bool = False
    budget: Holder | None = None
    progress: float | None = None
    phase: str | None = None
    fault: str | None = None
    info: ModelInfo | None = None
    can_call: bool | None = None
    can_think: bool | None = None
    can_infill: bool | None = None
    num_uses: int = 0
    num_loads: int = 0
    used_at: float = 0.0
    keep_s: float | None = None
    waiting: deque["Future[ModelUse]"] = field(default_factory=deque)
    leaving: list["Future[None]"] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name by which requests ask for it."""
        return self.found.name

    @property
    def is_answering(self) -> bool:
        """Whether any of the model's requests has not ended."""
        return self.engine is not None and self.engine.lifecycle.queue.num_live > 0

    @property
    def is_wanted(self) -> bool:
        """Whether requests wait for the model's weights."""
        return bool(self.waiting) or (not self.is_loaded and self.is_answering)

    def entry(self, keep_s: float) -> ModelEntry:
        """Describe the model for lists. keep_s: for how many seconds it stays loaded without requests."""
        status = self.engine.status() if self.engine else None
        tokens = self.info.context_tokens if self.info else self.found.folder.context_tokens
        if tokens and self.max_context_tokens:
            tokens = min(tokens, self.max_context_tokens)
        vision = self.found.folder.vision if self.shows_images else None
        return ModelEntry(
            name=self.name,
            state="loaded" if self.is_loaded else "unloaded" if self.progress is None else "loading",
            size_bytes=self.info.weight_bytes if self.info else self.found.folder.weight_bytes,
            context_tokens=tokens,
            progress=self.progress,
            phase=self.phase if self.progress is not None else None,
            fault=self.fault or self.found.folder.fault,
            num_running=status.num_running if status else 0,
            num_waiting=(status.num_waiting if status else 0) + len(self.waiting),
            num_loads=self.num_loads,
            info=self.info,
            can_call=self.can_call,
            can_think=self.can_think,
            purpose=self.info.purpose if self.info else self.found.folder.purpose,
            embedding=self.info.embedding if self.info else self.found.folder.embedding,
            vision=self.info.vision if self.info else vision,
            can_infill=self.can_infill,
            idle_left_s=self._idle_left_s(keep_s),
        )

    def _idle_left_s(self, keep_s: float) -> float | None:
        if not self.is_loaded or not isfinite(keep_s):
            return None
        idle_s = 0.0 if self.num_uses else time.monotonic() - self.used_at
        return max(0.0, keep_s - idle_s)
