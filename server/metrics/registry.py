"""Count requests and sequences, and collect what GET /metrics writes."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psutil
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from reprise.engine.interface.errors import SharedTableError
from reprise.engine.interface.events import Failed, Finished
from reprise.server.logs import RequestRecord
from reprise.server.metrics.definitions import GROUPS, MODEL, Metric, Scrape, Value

if TYPE_CHECKING:
    from reprise.engine.engine import Engine

MAX_REQUESTS = 100


class Metrics(Collector):
    """The metrics of one app, and its last requests. Any thread may use the metrics.

    stored: returns the sizes of the store of responses.

    recent: the last requests that generated tokens or failed, the newest first, as fields of JSON objects;
        see RequestRecord. For the event loop's thread alone.
    longest_hold_s: the most CPU time that the event loop has used without a pause.
    """

    def __init__(self, models: "Engine", stored: Callable[[], Mapping[str, int]]) -> None:
        self.recent: deque[dict[str, object]] = deque(maxlen=MAX_REQUESTS)
        self.longest_hold_s = 0.0
        self._models = models
        self._stored = stored
        self._process = psutil.Process(os.getpid())
        self._names_models = models.may_unload
        self._counted = {
            metric.name: _make(metric, *((MODEL,) if group.is_by_model and self._names_models else ()))
            for group in GROUPS
            for metric in group.metrics
            if metric.read is None
        }

    def begin_request(self) -> None:
        """Count an HTTP request as in progress until end_request()."""
        self._add("reprise_requests_in_progress", 1)

    def end_request(self, endpoint: str, record: RequestRecord) -> None:
        """Count an HTTP request that was answered or whose client left; remember it if of interest."""
        self._add("reprise_requests_in_progress", -1)
        self._add("reprise_requests_total", 1, endpoint, str(record.status))
        if record.error is not None:
            self._add("reprise_errors_total", 1, record.error)
        if record.finish_reason is not None:
            self._add("reprise_request_duration_seconds", record.total_ms / 1000)
        if record.is_of_interest:
            ended_at = datetime.now(UTC).isoformat(timespec="milliseconds")
            self.recent.appendleft({"time": ended_at} | record.as_fields())

    def count_sequence(self, event: Finished | Failed, is_first: bool, model: str) -> None:
        """Count a sequence that has ended.

        is_first: whether it is its prompt's first choice; a prompt's tokens count once for all choices.
        model: the name of the sequence's model, a label if there are several.
        """
        usage, drafting = event.usage, event.usage.drafting
        by_model = (model,) if self._names_models else ()
        end = event.reason if isinstance(event, Finished) else event.kind
        self._add("reprise_sequences_total", 1, end, *by_model)
        if is_first:
            self._add("reprise_prompt_tokens_total", usage.num_prompt_tokens, *by_model)
            self._add("reprise_cached_prompt_tokens_total", usage.num_cached_tokens, *by_model)
        self._add("reprise_completion_tokens_total", usage.num_completion_tokens, *by_model)
        if usage.queue_s < usage.total_s:
            self._add("reprise_queue_seconds", usage.queue_s, *by_model)
        if usage.num_completion_tokens:
            self._add("reprise_time_to_first_token_seconds", usage.first_token_s, *by_model)
        self._add("reprise_forwards_total", drafting.num_forwards, *by_model)
        self._add("reprise_gate_decisions_total", 1, drafting.gate_decision, *by_model)
        for reason, num_steps in drafting.undrafted:
            self._add("reprise_undrafted_steps_total", num_steps, reason, *by_model)
        for source, drafted, accepted in drafting.by_source:
            self._add("reprise_drafted_tokens_total", drafted, source, *by_model)
            self._add("reprise_accepted_tokens_total", accepted, source, *by_model)

    def count_parse(self, outcome: str) -> None:
        """Count a text between tool call markers that was parsed, or could not be."""
        self._add("reprise_tool_call_parses_total", 1, outcome)

    def observe_lag(self, lag_s: float) -> None:
        """Count how late the event loop woke."""
        self._add("reprise_event_loop_lag_seconds", lag_s)

    def count_hold(self, span: str, own_s: float) -> None:
        """Count a time in which the event loop was held. own_s: its own CPU time meanwhile."""
        self._add("reprise_event_loop_holds_total", 1, span)
        self.longest_hold_s = max(self.longest_hold_s, own_s)

    def collect(self) -> Iterator[Family]:
        """Yield the metrics that have a value now."""
        try:
            table = self._models.table.status()
        except SharedTableError:
            table = {}
        now = Scrape(
            status=self._models.status(),
            counts=self._models.counts(),
            models=self._models.loaded_entries(),
            prefixes=self._models.prefix_status(),
            table=table,
            stored=self._stored(),
            longest_hold_s=self.longest_hold_s,
            process=self._process,
        )
        with self._process.oneshot():
            for metric in (metric for group in GROUPS for metric in group.metrics):
                if metric.read is not None:
                    yield from _read(metric, metric.read(now))
                    continue
                for family in self._counted[metric.name].collect():
                    # The `_created` samples would double the number of series.
                    family.samples = [s for s in family.samples if not s.name.endswith("_created")]
                    yield family

    def _add(self, name: str, amount: float, *labels: str) -> None:
        """Add to a counter or gauge, or observe a value of a histogram."""
        metric = self._counted[name]
        one: Any = metric.labels(*labels) if labels else metric
        (one.observe if isinstance(metric, Histogram) else one.inc)(amount)


def _make(metric: Metric, *more_labels: str) -> Counter | Gauge | Histogram:
    labels = (*metric.labels, *more_labels)
    if metric.kind == "histogram":
        return Histogram(metric.name, metric.help, labels, buckets=metric.buckets, registry=None)
    kind = Counter if metric.kind == "counter" else Gauge
    return kind(metric.name, metric.help, labels, registry=None)


def _read(metric: Metric, value: Value) -> Iterator[Family]:
    """Yield the metric with the value that was read, if it has one."""
    if isinstance(value, tuple):
        bounds = [*(str(float(bound)) for bound in metric.buckets), "+Inf"]
        buckets = list(zip(bounds, value[0], strict=True))
        yield HistogramMetricFamily(metric.name, metric.help, buckets, value[1])
    elif value is not None and value != {}:
        make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = make(metric.name, metric.help, labels=metric.labels)
        if isinstance(value, Mapping):
            for label, one in value.items():
                family.add_metric([label], one)
        else:
            family.add_metric([], value)
        yield family
