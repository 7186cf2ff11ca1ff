"""Count requests and sequences as they end, and write all metrics of definitions.py for Prometheus."""

from collections.abc import Iterator, Sequence

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from reprise.engine.interface.events import Failed, Finished, Usage
from reprise.engine.interface.stations import StationClock
from reprise.server.engine_types import Models
from reprise.server.metrics.collectors import ScrapeCollector
from reprise.server.metrics.definitions import GROUPS
from reprise.server.metrics.endpoints import endpoint_of
from reprise.server.metrics.metric import MODEL, MetricEntry
from reprise.server.metrics.recent_requests import RecentRequests
from reprise.server.output.usage import DRAFT_MODEL
from reprise.server.responses_api.store import ResponseStore

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """The metrics of one app, in their own registry. May be used on any thread, except for recent."""

    def __init__(self, models: Models) -> None:
        self._names_models = not models.is_fixed
        made = {
            metric.name: _make(metric, (MODEL,) if group.is_by_model and self._names_models else ())
            for group in GROUPS
            if not group.is_scraped
            for metric in group.metrics
        }
        self._counters = {name: metric for name, metric in made.items() if isinstance(metric, Counter)}
        self._histograms = {name: metric for name, metric in made.items() if isinstance(metric, Histogram)}
        self._gauges = {name: metric for name, metric in made.items() if isinstance(metric, Gauge)}
        self.recent = RecentRequests()
        self._longest_hold_s = 0.0
        self._collector = ScrapeCollector(models)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_WithoutCreated(list(made.values())))
        self._registry.register(self._collector)

    def set_response_store(self, store: ResponseStore) -> None:
        """Report this store's size from now on."""
        self._collector.store = store

    def set_loop_stations(self, clock: StationClock) -> None:
        """Report the event loop's seconds from now on."""
        self._collector.loop_stations = clock

    def observe_lag(self, lag_s: float) -> None:
        """Count how late the event loop woke."""
        self._observe("event_loop_lag_seconds", lag_s)

    def count_hold(self, station: str, own_s: float) -> None:
        """Count a time in which the event loop served nobody. own_s: processor time of its own meanwhile."""
        self._count("event_loop_holds", 1, station)
        self._longest_hold_s = max(self._longest_hold_s, own_s)
        self._gauges["reprise_event_loop_longest_hold_seconds"].set(self._longest_hold_s)

    def count_wait(self, station: str, waited_s: float) -> None:
        """Count the seconds that a request waited for work outside of the event loop."""
        self._count("wait_seconds", waited_s, station)

    def begin_request(self) -> None:
        """Count an HTTP request as in progress until end_request()."""
        self._gauges["reprise_requests_in_progress"].inc()

    def end_request(self, path: str, status: int, error: str | None, generated_for_s: float | None) -> None:
        """Count an HTTP request that was answered or whose client left.

        error: the code of the error that was sent, if any.
        generated_for_s: the request's duration if it generated tokens, else None.
        """
        self._gauges["reprise_requests_in_progress"].dec()
        self._count("requests", 1, endpoint_of(path), str(status))
        if error is not None:
            self._count("errors", 1, error)
        if generated_for_s is not None:
            self._observe("request_duration_seconds", generated_for_s)

    def count_sequence(self, event: Finished | Failed, is_first: bool, model: str) -> None:
        """Count a sequence that has ended.

        is_first: whether it is its prompt's first choice; a prompt's tokens count once for all choices.
        model: the name of the sequence's model, a label if there are several.
        """
        usage, by_model = event.usage, (model,) if self._names_models else ()
        end = event.reason if isinstance(event, Finished) else event.kind
        self._count("sequences", 1, end, *by_model)
        if isinstance(event, Failed) and event.kind == "cancelled":
            self._count("cancelled_sequences", 1, _stage(usage), *by_model)
        if is_first:
            self._count("prompt_tokens", usage.num_prompt_tokens, *by_model)
            self._count("cached_prompt_tokens", usage.num_cached_tokens, *by_model)
        self._count("completion_tokens", usage.num_completion_tokens, *by_model)
        if usage.queue_s < usage.total_s:
            self._observe("queue_seconds", usage.queue_s, *by_model)
        if usage.num_completion_tokens:
            self._observe("time_to_first_token_seconds", usage.first_token_s, *by_model)
        self._count_drafts(usage, by_model)

    def count_parse(self, outcome: str) -> None:
        """Count a text between tool call markers that was parsed, or could not be."""
        self._count("tool_call_parses", 1, outcome)

    def as_text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def _count_drafts(self, usage: Usage, by_model: tuple[str, ...]) -> None:
        drafting = usage.drafting
        self._count("forwards", drafting.num_forwards, *by_model)
        self._count("gate_decisions", 1, drafting.gate_decision, *by_model)
        for reason, num_steps in drafting.undrafted:
            self._count("undrafted_steps", num_steps, reason, *by_model)
        for source, drafted, accepted in drafting.by_source:
            self._count("drafted_tokens", drafted, source, *by_model)
            self._count("accepted_tokens", accepted, source, *by_model)
            if source == DRAFT_MODEL and drafting.strategy:
                self._count("draft_model_tokens", drafted, drafting.strategy, *by_model)
                self._count("draft_model_accepted_tokens", accepted, drafting.strategy, *by_model)
        for outcome, count in drafting.translation.items():
            if outcome == "resynchronised":
                self._count("draft_resynchronisations", count, drafting.strategy or "", *by_model)
            else:
                self._count("draft_translations", count, drafting.strategy or "", outcome, *by_model)
        if drafting.num_drafted:
            self._observe("acceptance_ratio", drafting.num_accepted / drafting.num_drafted, *by_model)
        if drafting.num_forwards:
            self._observe(
                "tokens_per_forward", usage.num_completion_tokens / drafting.num_forwards, *by_model
            )

    def _count(self, name: str, amount: float, *labels: str) -> None:
        counter = self._counters[f"reprise_{name}_total"]
        (counter.labels(*labels) if labels else counter).inc(amount)

    def _observe(self, name: str, value: float, *labels: str) -> None:
        histogram = self._histograms[f"reprise_{name}"]
        (histogram.labels(*labels) if labels else histogram).observe(value)


class _WithoutCreated(Collector):
    """Metrics without their `_created` samples, which would double the number of series."""

    def __init__(self, metrics: Sequence[Counter | Gauge | Histogram]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        for metric in self._metrics:
            for family in metric.collect():
                family.samples = [s for s in family.samples if not s.name.endswith("_created")]
                yield family


def _stage(usage: Usage) -> str:
    """Return the stage in which a sequence ended. A stage that it did not complete ends at total_s."""
    if usage.queue_s >= usage.total_s:
        return "waiting"
    return "prefill" if usage.prefill_s >= usage.total_s else "decode"


def _make(entry: MetricEntry, more_labels: tuple[str, ...]) -> Counter | Gauge | Histogram:
    labels = (*entry.labels, *more_labels)
    if entry.kind == "histogram":
        return Histogram(entry.name, entry.help, labels, buckets=entry.buckets, registry=None)
    return (Counter if entry.kind == "counter" else Gauge)(entry.name, entry.help, labels, registry=None)
