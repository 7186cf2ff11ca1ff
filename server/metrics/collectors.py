"""Read values at each scrape: from the engine, its caches and tables, and the process."""

import os
from collections.abc import Callable, Iterator, Mapping

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from reprise.engine.interface.errors import SharedTableError
from reprise.engine.interface.models import ModelEntry
from reprise.engine.interface.stations import OTHER, StationClock
from reprise.engine.interface.status import GAP_BOUNDS_S, EngineCounts
from reprise.server.engine_types import Models
from reprise.server.metrics.definitions import GROUPS
from reprise.server.metrics.metric import MetricEntry, MetricGroup
from reprise.server.metrics.process_metrics import NGRAMS, PREFIXES, RESPONSES
from reprise.server.responses_api.store import ResponseStore

_Values = Mapping[str, float]
_NGRAM_KEYS = {"occupied": "occupied_entries", "occupancy": "occupancy_ratio"}
_GAPS = "reprise_inter_token_seconds"


class ScrapeCollector(Collector):
    """Reads current values at each scrape.

    store: the store of responses. loop_stations: the event loop's seconds. None until the app has them.
    """

    def __init__(self, models: Models) -> None:
        self.store: ResponseStore | None = None
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
        if self.store is None:
            return {}
        return {
            "bytes": self.store.num_bytes,
            "budget_bytes": self.store.max_bytes,
            "responses": len(self.store),
        }

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
