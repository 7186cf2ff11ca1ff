"""Every metric of GET /metrics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psutil

from reprise.engine.interface.models import ModelEntry
from reprise.engine.interface.status import GAP_BOUNDS_S, EngineCounts, EngineStatus

MODEL = "model"
"""The label of groups that count by model, where there are several."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """The sources of metrics at a scrape.

    prefixes: the counts of each prefix cache, by model. table: those of the n-gram table, empty without one.
    stored: the sizes of the store of responses. longest_hold_s: see Metrics.
    """

    status: EngineStatus
    counts: EngineCounts
    models: Sequence[ModelEntry]
    prefixes: Mapping[str, Mapping[str, int]]
    table: Mapping[str, Any]
    stored: Mapping[str, int]
    longest_hold_s: float
    process: psutil.Process


Value = float | Mapping[str, float] | tuple[Sequence[int], float] | None
"""A number; numbers by the metric's label; of a histogram, the cumulative counts of its buckets and the sum;
None or no numbers while the metric is absent."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. Its name and its buckets decide its kind.

    help: one sentence that explains the metric.
    read: returns the value at a scrape. None if events are counted as they happen, by Metrics in registry.py.
    labels: the names of its labels. buckets: a histogram's upper bounds.
    """

    name: str
    help: str
    read: Callable[[Scrape], Value] | None = None
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def kind(self) -> Literal["counter", "gauge", "histogram"]:
        """The type that Prometheus shows."""
        if self.buckets:
            return "histogram"
        return "counter" if self.name.endswith("_total") else "gauge"


class MetricGroup:
    """Metrics about one subject.

    note: an explanation of the group's metrics and labels, in Markdown.
    is_by_model: whether all metrics get the label "model" too if the server has several models.
    """

    def __init__(self, title: str, note: str, *metrics: Metric, is_by_model: bool = False) -> None:
        self.title, self.note, self.metrics, self.is_by_model = title, note, metrics, is_by_model


def _of_models(name: str, text: str, read: Callable[[ModelEntry], float]) -> Metric:
    return Metric(name, text, lambda now: {model.name: read(model) for model in now.models}, (MODEL,))


def _of_prefixes(name: str, text: str, key: str) -> Metric:
    def read(now: Scrape) -> Value:
        return {model: counts[key] for model, counts in now.prefixes.items() if key in counts}

    return Metric(name, text, read, (MODEL,))


GROUPS = (
    MetricGroup(
        "Requests",
        "`endpoint` is the path of an endpoint that `GET /` lists, or `other`. `status` is 499 if the client "
        "disconnected. `code` is the error object's `code`, or its `type` if it has no code. `outcome` is "
        "`parsed`, or `malformed`: the text is sent as it is.",
        Metric(
            "reprise_requests_total",
            "Total number of HTTP requests, by endpoint and status.",
            labels=("endpoint", "status"),
        ),
        Metric("reprise_requests_in_progress", "Number of HTTP requests in progress."),
        Metric(
            "reprise_errors_total",
            "Total number of errors sent to clients, as a response or in a stream, by code.",
            labels=("code",),
        ),
        Metric(
            "reprise_request_duration_seconds",
            "Duration of HTTP requests that generate tokens, from arrival to the end of the response.",
            buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600),
        ),
        Metric(
            "reprise_tool_call_parses_total",
            "Total number of texts between tool call markers, by outcome.",
            labels=("outcome",),
        ),
    ),
    MetricGroup(
        "Sequences and their tokens",
        "A sequence is one choice of one prompt. It is counted when it ends. `end` is `stop`, `length`, "
        "`cancelled` (the client left), `request` (this request failed), `grammar` (its grammar took too "
        "much computation), `engine` (the engine died) or `draining` (the server was stopping).",
        Metric(
            "reprise_sequences_total",
            "Total number of sequences that have ended, by how they ended.",
            labels=("end",),
        ),
        Metric(
            "reprise_prompt_tokens_total",
            "Total number of prompt tokens; a prompt with several choices counts once.",
        ),
        Metric(
            "reprise_cached_prompt_tokens_total", "Total number of prompt tokens taken from the prefix cache."
        ),
        Metric("reprise_completion_tokens_total", "Total number of generated tokens."),
        Metric(
            "reprise_queue_seconds",
            "Time that admitted sequences spent in the request queue.",
            buckets=(0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600),
        ),
        Metric(
            "reprise_time_to_first_token_seconds",
            "Time from submission to the first token.",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600),
        ),
        is_by_model=True,
    ),
    MetricGroup(
        "Drafts",
        "`source` is the drafter. `decision` is `lookup`, `draft-model`, `mtp`, `eagle3`, `dflash`, `wedlm` "
        "or `plain`. `reason` is `unmatched`, `unlikely`, `dear`, `spent`, `unread` or `inexact` "
        "([what they mean](drafting.md#why-was-nothing-drafted)).",
        Metric(
            "reprise_drafted_tokens_total",
            "Total number of drafted tokens that were verified.",
            labels=("source",),
        ),
        Metric(
            "reprise_accepted_tokens_total",
            "Total number of drafted tokens that were accepted.",
            labels=("source",),
        ),
        Metric(
            "reprise_forwards_total", "Total number of forward passes of decoding, summed over sequences."
        ),
        Metric(
            "reprise_undrafted_steps_total",
            "Total number of steps planned without a draft though one was allowed, summed over "
            "sequences, by reason.",
            labels=("reason",),
        ),
        Metric(
            "reprise_gate_decisions_total",
            "Total number of sequences, by the gate's decision.",
            labels=("decision",),
        ),
        is_by_model=True,
    ),
    MetricGroup(
        "The engine",
        "",
        Metric(
            "reprise_ready",
            "1 if the server accepts requests, else 0, as in GET /health.",
            lambda now: now.status.state == "ready",
        ),
        Metric(
            "reprise_rows", "Number of sequences in prefill or decode.", lambda now: now.status.num_running
        ),
        Metric(
            "reprise_waiting", "Number of sequences in the request queue.", lambda now: now.status.num_waiting
        ),
        Metric(
            "reprise_inter_token_seconds",
            "Time between consecutive tokens of a sequence; 0 between tokens of the same step.",
            lambda now: (now.counts.gaps_up_to, now.counts.gap_sum_s),
            buckets=GAP_BOUNDS_S,
        ),
        Metric(
            "reprise_failed_steps_total",
            "Total number of steps that raised an error.",
            lambda now: now.counts.num_failed_steps,
        ),
        Metric(
            "reprise_preemptions_total",
            "Total number of sequences put back into the queue because memory ran short.",
            lambda now: now.counts.num_preemptions,
        ),
        Metric(
            "reprise_stalls_total",
            "Total number of stalls: work was waiting, but no step finished in time.",
            lambda now: now.counts.num_stalls,
        ),
    ),
    MetricGroup(
        "Embeddings",
        "",
        Metric(
            "reprise_embedded_total",
            "Total number of texts embedded, and of documents rated.",
            lambda now: now.counts.num_embedded,
        ),
        Metric(
            "reprise_embedded_tokens_total",
            "Total number of their tokens, special tokens included and padding left out.",
            lambda now: now.counts.num_embedded_tokens,
        ),
        Metric(
            "reprise_embedding_waiting",
            "Texts and documents of requests that are queued or running, without a vector or score yet.",
            lambda now: now.counts.num_to_embed,
        ),
    ),
    MetricGroup(
        "Where time goes",
        "Stations of the engine's thread: `idle` (no work), `trials` (no work: what a model can do is "
        "tried), `messages` (requests and cancellations arrive), "
        "`retiring` (rows are freed and their prefixes kept), `admission` (requests are admitted and cached "
        "prefixes looked up), `memory` (room is made for the next step), `planning` (draft lengths are "
        "chosen), `drafters`, `grammars` (CPU time; in the first idle moment their vocabulary is made), "
        "`draft_model`, `dispatch` (steps are prepared for the device), "
        "`waiting` (for the device, in decoding), `commit` (tokens become text and are sent), `prefill` "
        "(with waiting for the device), `other`.",
        Metric(
            "reprise_engine_seconds_total",
            "Total seconds of the engine's thread, by span. Every moment counts in one span.",
            lambda now: now.counts.span_s,
            ("span",),
        ),
    ),
    MetricGroup(
        "The event loop",
        "Stations of the event loop: `connections` (HTTP is parsed), `bodies` (small request bodies are "
        "parsed and validated; large ones are parsed on a thread), `submission` (requests are passed to the "
        "engine), `output` (text is split into content, reasoning and tool calls), `format` (responses and "
        "events are written), `other`; and `none` if the loop did hardly any work meanwhile.",
        Metric(
            "reprise_event_loop_lag_seconds",
            "How late the event loop wakes, measured by twenty timers a second.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
        ),
        Metric(
            "reprise_event_loop_holds_total",
            "Times that the event loop woke more than 0.1 seconds late, by the span that held it.",
            labels=("span",),
        ),
        Metric(
            "reprise_event_loop_longest_hold_seconds",
            "The longest time, in seconds of the processor, that the event loop worked without a pause, "
            "of those counted as holds.",
            lambda now: now.longest_hold_s,
        ),
    ),
    MetricGroup(
        "Models",
        "`model` is the name of each model that was asked for, and of the one that the server started with.",
        _of_models(
            "reprise_model_loaded",
            "1 if the model's weights are in memory.",
            lambda model: model.state == "loaded",
        ),
        _of_models(
            "reprise_model_waiting",
            "Number of requests that wait for the model, or for a row of it.",
            lambda model: model.num_waiting,
        ),
        _of_models("reprise_model_loads_total", "Total number of its loads.", lambda model: model.num_loads),
    ),
    MetricGroup(
        "Machines that share a model",
        "`rank` is the number of each machine, which the banner gives with its address; 0 is the one that "
        "serves. Every half second the others say how far they are. Absent if the model is on one machine.",
        Metric(
            "reprise_rank_active_bytes",
            "Memory used by its MLX arrays.",
            lambda now: now.counts.by_rank.get("active_bytes"),
            ("rank",),
        ),
        Metric(
            "reprise_rank_silent_seconds",
            "Time since it was last heard of by rank 0.",
            lambda now: now.counts.by_rank.get("silent_seconds"),
            ("rank",),
        ),
    ),
    MetricGroup(
        "The prefix cache",
        "`model` is `target`, whose texts are prompts, or `draft`: the draft model has a prefix cache of its "
        "own, in its own tokens, and no files. With several models it is the name of a loaded one, with "
        "` draft` behind it for its draft model. Absent if the prefix cache is off "
        "(`--prefix-cache-bytes 0`).",
        _of_prefixes("reprise_prefix_cache_bytes", "Memory used by cached prefixes.", "num_bytes"),
        _of_prefixes(
            "reprise_prefix_cache_budget_bytes", "Maximum memory for cached prefixes.", "budget_bytes"
        ),
        _of_prefixes(
            "reprise_prefix_cache_hits_total", "Total number of texts with a cached prefix.", "hits"
        ),
        _of_prefixes(
            "reprise_prefix_cache_misses_total", "Total number of texts without a cached prefix.", "misses"
        ),
        _of_prefixes(
            "reprise_prefix_cache_evictions_total",
            "Total number of prefixes evicted to free memory.",
            "evictions",
        ),
        _of_prefixes(
            "reprise_prefix_cache_file_bytes",
            "Disk space used by the files in --prefix-cache-dir.",
            "file_bytes",
        ),
        _of_prefixes(
            "reprise_prefix_cache_file_written_bytes_total",
            "Total number of bytes written to files in --prefix-cache-dir.",
            "written_file_bytes",
        ),
        _of_prefixes(
            "reprise_prefix_cache_file_left_out_total",
            "Total number of times that text was not written, as the bytes of an hour were used up.",
            "left_out_files",
        ),
    ),
    MetricGroup(
        "Reading ahead",
        "Tokens of expected prompts, computed while nothing else was to be done (`--read-ahead`). Those that "
        "are neither used nor wasted may still be used.",
        Metric(
            "reprise_read_ahead_tokens_total",
            "Total number of tokens computed.",
            lambda now: now.counts.num_read_ahead,
        ),
        Metric(
            "reprise_read_ahead_used_tokens_total",
            "Total number of these that later prompts used.",
            lambda now: now.counts.num_read_ahead_used,
        ),
        Metric(
            "reprise_read_ahead_wasted_tokens_total",
            "Total number of these that no prompt has used for long.",
            lambda now: now.counts.num_read_ahead_wasted,
        ),
        Metric(
            "reprise_read_ahead_seconds_total",
            "Time spent in computing them.",
            lambda now: now.counts.read_ahead_s,
        ),
        Metric(
            "reprise_read_ahead_left_tokens",
            "Tokens that the prompt being read ahead now still lacks.",
            lambda now: now.counts.num_to_read,
        ),
    ),
    MetricGroup(
        "The n-gram table",
        "Absent if the model does not support drafting. With several models it is that of the one that the "
        "server started with, while that is loaded.",
        Metric(
            "reprise_ngram_table_entries",
            "Capacity of the table in entries.",
            lambda now: now.table.get("entries"),
        ),
        Metric(
            "reprise_ngram_table_occupied_entries",
            "Number of occupied entries.",
            lambda now: now.table.get("occupied"),
        ),
    ),
    MetricGroup(
        "Stored responses",
        "",
        Metric(
            "reprise_response_store_bytes",
            "Memory used by stored responses.",
            lambda now: now.stored.get("bytes"),
        ),
        Metric(
            "reprise_response_store_budget_bytes",
            "Maximum memory for stored responses.",
            lambda now: now.stored.get("budget_bytes"),
        ),
    ),
    MetricGroup(
        "Memory and the process",
        "",
        Metric("reprise_mlx_active_bytes", "Memory used by MLX arrays.", lambda now: now.counts.active_bytes),
        Metric(
            "reprise_mlx_peak_bytes",
            "Maximum memory used by MLX arrays since the start.",
            lambda now: now.counts.peak_bytes,
        ),
        Metric(
            "reprise_mlx_cache_bytes",
            "Memory in MLX's cache of freed buffers.",
            lambda now: now.counts.cache_bytes,
        ),
        Metric(
            "reprise_memory_pressure",
            "Memory pressure as the system reports it: 0 none, 1 warning, 2 critical.",
            lambda now: now.counts.pressure_level,
        ),
        Metric(
            "reprise_memory_given_back_bytes_total",
            "Total bytes of cached prefixes and free buffers dropped under memory pressure.",
            lambda now: now.counts.given_back_bytes,
        ),
        Metric(
            "process_resident_memory_bytes",
            "Resident memory size in bytes.",
            lambda now: now.process.memory_info().rss,
        ),
        Metric(
            "process_cpu_seconds_total",
            "Total user and system CPU time spent in seconds.",
            lambda now: sum(now.process.cpu_times()[:2]),
        ),
        Metric(
            "process_start_time_seconds",
            "Start time of the process, in seconds since the Unix epoch.",
            lambda now: now.process.create_time(),
        ),
        Metric("process_open_fds", "Number of open file descriptors.", lambda now: now.process.num_fds()),
        Metric(
            "process_threads", "Number of OS threads in the process.", lambda now: now.process.num_threads()
        ),
    ),
)
