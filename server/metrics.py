"""What Prometheus can scrape from GET /metrics. The README has every name, and a test holds it to that."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.request import SharedMemoryError, Usage
from server.endpoints import endpoint_of
from server.engine_face import EngineFace

CONTENT_TYPE = CONTENT_TYPE_LATEST
_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_REQUEST_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1)
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1)
_TOKENS_PER_FORWARD = (1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32)

_TABLE_GAUGES = {
    "entries": ("entries", "Entries that the n-gram table has room for."),
    "occupied": ("occupied_entries", "Entries of the n-gram table that hold something."),
    "occupancy": ("occupancy_ratio", "Share of the n-gram table's entries that hold something."),
    "bytes": ("bytes", "Memory that the n-gram table takes."),
}
_TABLE_COUNTERS = {
    "inserts": ("inserts", "Tokens written into the n-gram table."),
    "overwrites": ("overwrites", "Writes that replaced another token in the n-gram table."),
    "hits": ("hits", "Tokens that the n-gram table drafted."),
    "misses": ("misses", "Lookups that found nothing in the n-gram table."),
}


class Metrics:
    """The counters of one app, in a registry of its own. Used on the event loop alone."""

    def __init__(self, engine: EngineFace) -> None:
        self._requests = _counter("requests", "HTTP requests.", "endpoint", "status")
        self._prompt_tokens = _counter("prompt_tokens", "Prompt tokens, those of n choices once.")
        self._cached_tokens = _counter("cached_prompt_tokens", "Prompt tokens that were not computed again.")
        self._completion_tokens = _counter("completion_tokens", "Generated tokens.")
        self._drafted_tokens = _counter("drafted_tokens", "Drafted tokens that were verified.", "source")
        self._accepted_tokens = _counter("accepted_tokens", "Drafted tokens that were right.", "source")
        self._forwards = _counter("forwards", "Forwards that decoding took, counted for each sequence.")
        self._gate_decisions = _counter(
            "gate_decisions", "Sequences by what the gate made of them.", "decision"
        )
        self._first_token = _histogram(
            "time_to_first_token_seconds", "From submission to the first token.", _FIRST_TOKEN_S
        )
        self._duration = _histogram(
            "request_duration_seconds", "From a completion's request to the end of its answer.", _REQUEST_S
        )
        self._inter_token = _histogram(
            "inter_token_seconds", "A sequence's mean time between tokens, after its first.", _TOKEN_S
        )
        self._acceptance = _histogram(
            "acceptance_ratio", "Share of a sequence's drafted tokens that were right.", _SHARES
        )
        self._per_forward = _histogram(
            "tokens_per_forward", "A sequence's tokens for each of its forwards.", _TOKENS_PER_FORWARD
        )
        self._registry = CollectorRegistry(auto_describe=False)
        metrics = [m for m in vars(self).values() if isinstance(m, Counter | Histogram)]
        self._registry.register(_WithoutDates(metrics))
        self._registry.register(_EngineState(engine))

    def count_request(self, path: str, status: int, generated_for_s: float | None) -> None:
        """An HTTP request was answered, or its client left.

        generated_for_s: how long it took, if the engine was asked for tokens; None for all else.
        """
        self._requests.labels(endpoint_of(path), str(status)).inc()
        if generated_for_s is not None:
            self._duration.observe(generated_for_s)

    def count_sequences(self, usages: Collection[Usage], num_prompt: int, num_cached: int) -> None:
        """The sequences of a request ended, well or badly.

        num_prompt, num_cached: the request's prompt tokens as its usage has them, n choices once.
        """
        self._prompt_tokens.inc(num_prompt)
        self._cached_tokens.inc(num_cached)
        for usage in usages:
            self._count_sequence(usage)

    def as_text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)

    def _count_sequence(self, usage: Usage) -> None:
        drafting = usage.drafting
        self._completion_tokens.inc(usage.num_completion_tokens)
        self._forwards.inc(drafting.num_forwards)
        self._gate_decisions.labels(drafting.gate_decision).inc()
        for source, drafted, accepted in drafting.by_source:
            self._drafted_tokens.labels(source).inc(drafted)
            self._accepted_tokens.labels(source).inc(accepted)
        if usage.num_completion_tokens:
            self._first_token.observe(usage.first_token_s)
        if usage.decode_tokens_per_s:
            self._inter_token.observe(1 / usage.decode_tokens_per_s)
        if drafting.num_drafted:
            self._acceptance.observe(drafting.num_accepted / drafting.num_drafted)
        if drafting.num_forwards:
            self._per_forward.observe(usage.num_completion_tokens / drafting.num_forwards)


class _WithoutDates(Collector):
    """Metrics without the date of each one's making, which would double their number."""

    def __init__(self, metrics: Sequence[Counter | Histogram]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        for metric in self._metrics:
            for family in metric.collect():
                family.samples = [s for s in family.samples if not s.name.endswith("_created")]
                yield family


class _EngineState(Collector):
    """What the engine is doing now, asked at each scrape."""

    def __init__(self, engine: EngineFace) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        status = self._engine.status()
        yield GaugeMetricFamily("reprise_rows", "Sequences in the batch.", status.num_running)
        yield GaugeMetricFamily("reprise_waiting", "Sequences that wait for a row.", status.num_waiting)
        try:
            table: dict[str, Any] = self._engine.memory_status()
        except SharedMemoryError:
            return
        for key, (name, text) in _TABLE_GAUGES.items():
            if key in table:
                yield GaugeMetricFamily(f"reprise_ngram_table_{name}", text, table[key])
        for key, (name, text) in _TABLE_COUNTERS.items():
            if key in table:
                yield CounterMetricFamily(f"reprise_ngram_table_{name}", text, table[key])


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"reprise_{name}", text, labels, registry=None)


def _histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
    return Histogram(f"reprise_{name}", text, buckets=buckets, registry=None)
