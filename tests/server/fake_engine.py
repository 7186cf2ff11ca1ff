"""An engine without a model: a script makes each sequence's events, on its own thread.

Token ids are the bytes of UTF-8 text. The chat template joins lines of "role: content".
"""

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Literal

from reprise.engine.interface.errors import RETRY_AFTER_S, EngineError, GrammarError, SharedTableError
from reprise.engine.interface.events import (
    Delta,
    DraftingReport,
    Event,
    Failed,
    Finished,
    FinishReason,
    PromptProgress,
    Sink,
    TokenLogprob,
    Usage,
)
from reprise.engine.interface.images import ImageProcessor, VisionInfo, mark
from reprise.engine.interface.models import ModelEntry, ModelInfo, ModelUse
from reprise.engine.interface.request import GenerationRequest, Grammar, PromptEnd
from reprise.engine.interface.status import EngineCounts, EngineStatus
from reprise.engine.text.markers import FimTokens, Marker, Markers

NEVER_S = 240
"""Seconds after which nothing happens any more, on any machine."""
PROBE_ID = "probeid01"
VOCAB_SIZE = 256
CONTEXT_TOKENS = 1000


def marker(text: str) -> Marker:
    return Marker(text, tuple(text.encode()))


# Tool call markers are single tokens, as in most models.
CALLING = Markers(
    call_start=Marker("<tool_call>", (1,)), call_end=Marker("</tool_call>", (2,)), call_format="json_tools"
)
# An image's placeholder is a byte that no text has.
PROCESSOR = ImageProcessor("qwen", 16, 2, 4096, 1 << 20, 3, "\x03", "\x03", "[\x03]")
SEEING = VisionInfo("qwen", 3, 16, 2, 4, 1024, 768, PROCESSOR)
THINKING = replace(CALLING, think_start=marker("<think>"), think_end=marker("</think>"))


class FakeTokenizer:
    """A tokenizer whose tokens are bytes. markers may be changed between requests.

    opening: text at the end of every chat prompt.
    """

    has_chat_template = True
    markers = CALLING
    vocab_size = VOCAB_SIZE
    longest_token = 2
    eos_ids: frozenset[int] = frozenset()
    fim: FimTokens | None = None

    def __init__(self) -> None:
        self.rendered: list[tuple[list[dict[str, Any]], dict[str, Any] | None]] = []
        self.rendered_tools: list[list[dict[str, Any]] | None] = []
        self.encoded_answers: list[str] = []
        self.opening = ""

    @property
    def description(self) -> dict[str, str | None]:
        return {"tokenizer_class": "Bytes", "eos_token": "<end>", "bos_token": None, "chat_template": "{{x}}"}

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_answer(self, text: str) -> list[int]:
        self.encoded_answers.append(text)
        return self.encode(text)

    def piece(self, token: int) -> bytes:
        return bytes([token])

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")

    def render_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        template_arguments: dict[str, Any] | None = None,
        end: PromptEnd = "answer",
        processor: ImageProcessor | None = None,
    ) -> list[int]:
        # What is rendered to find out how calls are written is no conversation.
        if not any(call["id"] == PROBE_ID for one in messages for call in one.get("tool_calls") or ()):
            self.rendered.append((messages, template_arguments))
            self.rendered_tools.append(tools)
        if any(message["content"] == "refuse me" for message in messages):
            raise ValueError("the chat template refused the messages: roles must alternate")
        said = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        if processor is not None:
            said = re.sub(f"{mark('([0-9]+)')}", processor.alone, said)
        if end == "final_message":
            return self.encode(said.removesuffix("\n"))
        return self.encode(said + self.opening if end == "answer" else said)

    def opens_thinking(self, prompt: Sequence[int]) -> bool:
        return bytes(prompt).endswith(b"<think>")

    def find_head_end(self, prompt: Sequence[int], text: str) -> int:
        return max(0, bytes(prompt).find(text.encode()))


@dataclass
class Job:
    """A submitted sequence."""

    request: GenerationRequest
    sink: Sink
    drafting: DraftingReport
    cancelled: threading.Event = field(default_factory=threading.Event)


Script = Callable[["FakeEngine", Job], Event]
"""Sends a job's deltas and returns its terminal event."""


def _usage(job: Job, num_completion: int, num_cached: int = 0) -> Usage:
    return Usage(
        num_prompt_tokens=len(job.request.prompt),
        num_cached_tokens=num_cached,
        num_completion_tokens=num_completion,
        queue_s=0.05,
        prefill_s=0.15,
        first_token_s=0.25,
        total_s=0.25 + 0.1 * max(0, num_completion - 1),
        drafting=job.drafting,
    )


def logprobs_of(job: Job, text: bytes) -> tuple[TokenLogprob, ...]:
    """Return log probabilities: the greater a byte, the less likely; the top tokens are a, b, c, ..."""
    if job.request.top_logprobs is None:
        return ()
    top = tuple((97 + i, bytes([97 + i]), -0.25 * (i + 1)) for i in range(job.request.top_logprobs))
    return tuple(TokenLogprob(byte, bytes([byte]), -byte / 4, top) for byte in text)


def _send_prompt_logprobs(job: Job) -> None:
    """Send the log probabilities of the prompt's tokens, the first alone and then three at a time."""
    if job.request.prompt_logprobs:
        first, *others = logprobs_of(job, bytes(job.request.prompt))
        job.sink(Delta("", (replace(first, logprob=None, top=()),), is_prompt=True))
        for start in range(0, len(others), 3):
            job.sink(Delta("", tuple(others[start : start + 3]), is_prompt=True))


def echo(_: "FakeEngine", job: Job) -> Event:
    """Answer with the prompt, one character per delta, up to max_tokens bytes."""
    _send_prompt_logprobs(job)
    answer = bytes(job.request.prompt[: job.request.max_tokens])
    for character in answer.decode(errors="ignore"):
        job.sink(Delta(character, logprobs_of(job, character.encode())))
    is_cut = job.request.max_tokens < len(job.request.prompt)
    return Finished("length" if is_cut else "stop", _usage(job, len(answer), num_cached=3))


def says(*pieces: str, reason: FinishReason = "stop") -> "Script":
    """Return a script that answers every request with these pieces, one per delta."""

    def say(_: "FakeEngine", job: Job) -> Event:
        _send_prompt_logprobs(job)
        for piece in pieces:
            job.sink(Delta(piece, logprobs_of(job, piece.encode())))
        tokens = tuple("".join(pieces).encode())
        return Finished(reason, _usage(job, len(tokens)), tokens)

    return say


def tells(text: str) -> "Script":
    """Return a script that reports what it does, as far as the request asks for it."""

    def tell(_: "FakeEngine", job: Job) -> Event:
        for num_processed in (2, 5) if job.request.reports_progress else ():
            job.sink(Delta("", progress=PromptProgress(len(job.request.prompt), 2, num_processed, 0.5)))
        for num, piece in enumerate(text, 1):
            job.sink(Delta(piece, usage=_usage(job, num) if job.request.reports_usage else None))
        stop = job.request.stop[0] if job.request.stop else None
        return Finished("stop", _usage(job, len(text)), tuple(text.encode()), stop)

    return tell


def traces(*runs: tuple[str, str]) -> "Script":
    """Return a script that answers with these (text, source), one per delta, and says so if asked to."""

    def trace(_: "FakeEngine", job: Job) -> Event:
        for num, run in enumerate(runs, 1):
            usage = _usage(job, num) if job.request.reports_usage else None
            job.sink(Delta(run[0], usage=usage, origins=(run,) if job.request.reports_origins else ()))
        return Finished("stop", _usage(job, len(runs)))

    return trace


def wait_first(engine: "FakeEngine", job: Job) -> Event:
    """Wait until released (or cancelled), then echo."""
    engine.wait_for_release(job)
    return (
        Failed("cancelled", "the client left", _usage(job, 0))
        if job.cancelled.is_set()
        else echo(engine, job)
    )


def wait_midway(engine: "FakeEngine", job: Job) -> Event:
    """Send one word, wait until released (or cancelled), then echo."""
    job.sink(Delta("well "))
    engine.wait_for_release(job)
    return (
        Failed("cancelled", "the client left", _usage(job, 1))
        if job.cancelled.is_set()
        else echo(engine, job)
    )


def fail_first(_: "FakeEngine", job: Job) -> Event:
    """Fail before the first token."""
    return Failed("request", "generation failed: the roof is on fire", _usage(job, 0))


def fail_midway(_: "FakeEngine", job: Job) -> Event:
    """Fail after one word."""
    job.sink(Delta("well "))
    return Failed("request", "generation failed: the roof is on fire", _usage(job, 1))


def die(engine: "FakeEngine", _: Job) -> Event:
    """Make the whole engine die."""
    engine.fault = "RuntimeError: out of luck"
    if engine.on_death is not None:
        engine.on_death(engine.fault)
    return Failed("engine", "the engine has stopped: RuntimeError: out of luck")


SCRIPTS: dict[str, Script] = {
    script.__name__: script for script in (echo, wait_first, wait_midway, fail_first, fail_midway, die)
}


class FakeEngine:
    """Stands in for the engine, which has one model. Public attributes may be changed between requests.

    drafting: the report of every sequence. counted, prefixes: the engine's and the prefix caches' counts.
    memory: the shared table's counts; None for no table.
    memory_fault: why the table's file cannot be written or read; None if it can.
    expected: the prompts to read ahead, if has_prefix_cache is set.
    """

    may_unload = False
    on_death: Callable[[str], None] | None = None

    def __init__(self, script: Script = echo) -> None:
        self.attached: dict[Any, Any] = {}
        self.script = script
        self.refusal: Literal["engine_dead", "queue_full", "draining"] | None = None
        self.retry_after_s = RETRY_AFTER_S
        self.memory_pressure: Any = "none"
        self.state: Literal["loading", "ready", "draining", "stalled", "dead"] = "ready"
        self.fault: str | None = None
        self.num_waiting = 0
        self.drafting = DraftingReport()
        self.memory: dict[str, Any] | None = {"entries": 1024, "occupied": 256, "occupancy": 0.25, "hits": 7}
        self.counted = EngineCounts(span_s={"idle": 0.0})
        self.prefixes: dict[str, dict[str, int]] = {}
        self.memory_fault: str | None = None
        self.memory_calls: list[str] = []
        self.has_prefix_cache = False
        self.expected: list[GenerationRequest] = []
        self.info = ModelInfo(
            name="org/fake-model",
            architecture="fake",
            context_tokens=CONTEXT_TOKENS,
            vocab_size=VOCAB_SIZE,
            num_layers=1,
            num_parameters=8_100_000,
            weight_bytes=16_200_000,
            dtype="bfloat16",
            device="cpu",
            memory_bytes=8 * 2**30,
            loaded_s=0.1,
        )
        self.tokenizer = FakeTokenizer()
        self.compiled_grammars: list[Grammar] = []
        self.grammar_fault: str | None = None
        self.requests: list[GenerationRequest] = []
        self.cancelled_ids: list[str] = []
        self._live: dict[str, Job] = {}
        self._changed = threading.Condition()
        self._released = threading.Event()

    def start(self, on_progress: Callable[[str, float], None] | None = None) -> None:
        if on_progress is not None:
            on_progress("Loading fake", 1.0)

    @property
    def first_name(self) -> str:
        return self.info.name

    def entries(self) -> list[ModelEntry]:
        info, markers = self.info, self.tokenizer.markers
        entry = ModelEntry(
            name=info.name,
            state="loaded",
            size_bytes=info.weight_bytes,
            context_tokens=info.context_tokens,
            num_running=len(self._live),
            num_waiting=self.num_waiting,
            num_loads=1,
            info=info,
            can_call=markers.can_call,
            can_think=markers.can_think,
            can_infill=self.tokenizer.fim is not None,
            vision=info.vision,
            tool_format=markers.format_name,
            thinking_switches=markers.thinking_switches,
        )
        return [entry]

    loaded_entries = entries

    def find(self, name: str) -> ModelEntry | None:
        return self.entries()[0] if name == self.info.name else None

    def use_loaded(self, name: str) -> ModelUse | None:
        return ModelUse(self, lambda _: None) if name == self.info.name else None

    def submit(self, request: GenerationRequest, sink: Sink) -> None:
        if self.refusal is not None and (self.refusal != "queue_full" or self._live):
            raise EngineError(self.refusal, f"the engine says {self.refusal}", self.retry_after_s)
        job = Job(request, sink, self.drafting)
        with self._changed:
            self.requests.append(request)
            self._live[request.id] = job
            self._changed.notify_all()
        threading.Thread(target=self._work, args=(job, self.script), daemon=True).start()

    def compile_grammar(self, grammar: Grammar) -> Grammar:
        self.compiled_grammars.append(grammar)
        if self.grammar_fault is not None:
            raise GrammarError(self.grammar_fault)
        return replace(grammar, compiled=len(self.compiled_grammars))

    def expect(self, requests: Sequence[GenerationRequest]) -> None:
        with self._changed:
            self.expected += requests
            self._changed.notify_all()

    def cancel(self, request_id: str) -> None:
        with self._changed:
            self.cancelled_ids.append(request_id)
            if request_id in self._live:
                self._live[request_id].cancelled.set()
            self._changed.notify_all()
        self._wake_waiting()

    def status(self) -> EngineStatus:
        state = "dead" if self.fault is not None and self.state != "stalled" else self.state
        counts = len(self._live), self.num_waiting
        return EngineStatus(state, *counts, self.fault, self.retry_after_s, self.memory_pressure)

    def counts(self) -> EngineCounts:
        return self.counted

    def prefix_status(self) -> dict[str, dict[str, int]]:
        return self.prefixes

    @property
    def table(self) -> SimpleNamespace:
        return SimpleNamespace(
            status=self.table_status, reset=self.table_reset, save=self.table_save, load=self.table_load
        )

    def table_status(self) -> dict[str, Any]:
        if self.memory is None:
            raise SharedTableError("there is no table")
        return self.memory

    def table_reset(self) -> None:
        self._call_memory("reset")
        self.memory = self.table_status() | {"occupied": 0, "occupancy": 0.0}

    def table_save(self) -> str:
        return self._call_memory("save")

    def table_load(self) -> str:
        return self._call_memory("load")

    def _call_memory(self, name: str) -> str:
        # Like the real engine's, this call blocks, so it must not be made on the event loop.
        assert threading.current_thread() is not threading.main_thread()
        if self.memory_fault is not None and name != "reset":
            raise SharedTableError(self.memory_fault)
        self.memory_calls.append(name)
        return f"{name} done"

    def stop(self, drain_s: float) -> None:
        self.state = "draining"
        if not self.wait_until(lambda: not self._live, drain_s):
            for job in list(self._live.values()):
                job.cancelled.set()
            self._wake_waiting()
            assert self.wait_until(lambda: not self._live)

    # Controls and observations for tests.

    def release(self) -> None:
        """Let all scripts that wait continue, now and later."""
        self._released.set()
        self._wake_waiting()

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = NEVER_S) -> bool:
        """Wait until a condition on requests or cancellations holds; return False if it does not in time."""
        with self._changed:
            return self._changed.wait_for(condition, timeout_s)

    def wait_until_cancelled(self, num_cancelled: int) -> None:
        """Wait until num_cancelled sequences have been cancelled."""
        assert self.wait_until(lambda: len(self.cancelled_ids) >= num_cancelled), "not cancelled"

    @property
    def num_live(self) -> int:
        return len(self._live)

    def wait_for_release(self, job: Job) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._released.is_set() or job.cancelled.is_set())

    def _wake_waiting(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _work(self, job: Job, script: Script) -> None:
        end = script(self, job)
        with self._changed:
            del self._live[job.request.id]
            self._changed.notify_all()
        job.sink(end)
