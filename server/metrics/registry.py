"""Count requests and sequences, and write GET /metrics."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import psutil
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from reprise.engine.interface.errors import SharedTableError
from reprise.engine.interface.events import Failed, Finished, Usage
from reprise.engine.interface.models import ModelEntry
from reprise.engine.interface.stations import OTHER, StationClock
from reprise.engine.interface.status import GAP_BOUNDS_S, EngineCounts
from reprise.server.engine_types import Models
from reprise.server.logs import RequestRecord
from reprise.server.metrics.definitions import (
    GROUPS,
    MODEL,
    NGRAMS,
    PREFIXES,
    RESPONSES,
    MetricEntry,
    MetricGroup,
    endpoint_of,
)
from reprise.server.output.usage import DRAFT_MODEL

_Values = Mapping[str, float]
_NGRAM_KEYS = {"occupied": "occupied_entries", "occupancy": "occupancy_ratio"}
_GAPS = "reprise_inter_token_seconds"


class ScrapeCollector(Collector):
    """Reads current values at each scrape.

    stored: returns the sizes of the store of responses. loop_stations: the event loop's seconds. None until
        the app has them.
    """

    def __init__(self, models: Models) -> None:
        self.stored: Callable[[], _Values] | None = None
        self.loop_stations: StationClock | None = None
        self._models = models
        self._process = psutil.Process(os.getpid())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that have a value now."""
        counts = self._models.counts()
        values = {
            **self._engine_values(counts),
            **_named(NGRAMS, "reprise_ngram_table_", self._ngram_status()),
            **_named(RESPONSES, "reprise_response_store_", self._store_status()),
            **self._process_values(),
        }
        loop_s = self.loop_stations.seconds if self.loop_stations else {}
        by_label = {
            **self._prefix_values(),
            **self._model_values(),
            **{f"reprise_rank_{name}": values for name, values in counts.by_rank.items()},
            "reprise_engine_seconds_total": counts.station_s,
            # Outside of its stations the event loop mostly waits.
            "reprise_event_loop_seconds_total": {k: s for k, s in loop_s.items() if k != OTHER},
        }
        for group in GROUPS:
            for metric in group.metrics if group.is_scraped else ():
                if metric.name == _GAPS:
                    yield _gaps(metric.help, counts)
                elif metric.name in by_label:
                    yield _family(metric, by_label[metric.name])
                elif metric.name in values:
                    yield _family(metric, {"": values[metric.name]})

    def _engine_values(self, counts: EngineCounts) -> _Values:
        status = self._models.status()
        return {
            "reprise_ready": status.state == "ready",
            "reprise_rows": status.num_running,
            "reprise_waiting": status.num_waiting,
            "reprise_failed_steps_total": counts.num_failed_steps,
            "reprise_preemptions_total": counts.num_preemptions,
            "reprise_plain_probes_total": counts.num_plain_probes,
            "reprise_stalls_total": counts.num_stalls,
            "reprise_embedded_total": counts.num_embedded,
            "reprise_embedded_tokens_total": counts.num_embedded_tokens,
            "reprise_embedding_waiting": counts.num_to_embed,
            "reprise_mlx_active_bytes": counts.active_bytes,
            "reprise_mlx_peak_bytes": counts.peak_bytes,
            "reprise_mlx_cache_bytes": counts.cache_bytes,
        }

    def _prefix_values(self) -> Mapping[str, _Values]:
        """Return the values of the prefix caches by metric and model."""
        found: dict[str, dict[str, float]] = {}
        for model, status in self._models.prefix_status().items():
            for name, value in _named(PREFIXES, "reprise_prefix_cache_", status).items():
                found.setdefault(name, {})[model] = value
        return found

    def _model_values(self) -> Mapping[str, _Values]:
        """Return the values of each model by metric and model."""
        entries = self._models.loaded_entries()
        by_name: dict[str, Callable[[ModelEntry], float]] = {
            "loaded": lambda one: one.state == "loaded",
            "rows": lambda one: one.num_running,
            "waiting": lambda one: one.num_waiting,
            "weight_bytes": lambda one: one.size_bytes if one.state == "loaded" else 0,
            "loads_total": lambda one: one.num_loads,
            "unloads_total": lambda one: one.num_unloads,
        }
        return {
            f"reprise_model_{name}": {entry.name: value(entry) for entry in entries}
            for name, value in by_name.items()
        }

    def _ngram_status(self) -> _Values:
        try:
            counts = self._models.table.status()
        except SharedTableError:
            return {}
        return {_NGRAM_KEYS.get(key, key): value for key, value in counts.items()}

    def _store_status(self) -> _Values:
        return self.stored() if self.stored else {}

    def _process_values(self) -> _Values:
        with self._process.oneshot():
            spent = self._process.cpu_times()
            return {
                "process_resident_memory_bytes": self._process.memory_info().rss,
                "process_cpu_seconds_total": spent.user + spent.system,
                "process_start_time_seconds": self._process.create_time(),
                "process_open_fds": self._process.num_fds(),
                "process_threads": self._process.num_threads(),
            }


def _named(group: MetricGroup, prefix: str, values: Mapping[str, float]) -> _Values:
    """Map values to the names of the group's metrics. Values without a metric are dropped."""
    short = {m.name.removeprefix(prefix).removesuffix("_total"): m.name for m in group.metrics}
    named = {key.removeprefix("num_"): value for key, value in values.items()}
    return {short[key]: value for key, value in named.items() if key in short}


def _family(metric: MetricEntry, values: _Values) -> Metric:
    """Return a counter or gauge. values: by its label; one value by any key if it has none."""
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = make(metric.name, metric.help, labels=metric.labels)
    for label, value in values.items():
        family.add_metric([label] if metric.labels else [], value)
    return family


def _gaps(text: str, counts: EngineCounts) -> HistogramMetricFamily:
    bounds = [*(str(float(bound)) for bound in GAP_BOUNDS_S), "+Inf"]
    return HistogramMetricFamily(
        _GAPS, text, list(zip(bounds, counts.gaps_up_to, strict=True)), counts.gap_sum_s
    )


MAX_REQUESTS = 100


class RecentRequests:
    """The last requests that generated tokens or failed. For the event loop's thread alone."""

    def __init__(self) -> None:
        self._held: deque[dict[str, object]] = deque(maxlen=MAX_REQUESTS)

    def add(self, record: RequestRecord) -> None:
        """Remember a request that has ended, if it is of interest."""
        if record.is_of_interest:
            ended_at = datetime.now(UTC).isoformat(timespec="milliseconds")
            self._held.appendleft({"time": ended_at} | record.as_fields())

    def newest_first(self) -> list[dict[str, object]]:
        """Return the requests as fields of JSON objects, as in the log; see RequestRecord."""
        return list(self._held)


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

    def report_stored(self, sizes: Callable[[], _Values]) -> None:
        """Report the sizes of the store of responses from now on."""
        self._collector.stored = sizes

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
