"""The metrics of GET /metrics."""

from dataclasses import dataclass
from typing import Literal

from reprise.engine.interface.status import GAP_BOUNDS_S

MODEL = "model"
"""The label of groups that count by model, where there are several."""


@dataclass(frozen=True, slots=True)
class MetricEntry:
    """A metric.

    help: one sentence that explains the metric. labels: the names of its labels.
    buckets: a histogram's upper bounds.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricGroup:
    """Metrics about one subject.

    is_scraped: whether the values are read at each scrape; otherwise events are counted as they happen.
    note: an explanation of the group's metrics and labels, in Markdown.
    is_by_model: whether all metrics get the label "model" too if the server has several models.
    """

    title: str
    is_scraped: bool
    metrics: tuple[MetricEntry, ...]
    note: str = ""
    is_by_model: bool = False


_LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)

ENGINE = MetricGroup(
    "The engine",
    True,
    (
        MetricEntry("reprise_ready", "gauge", "1 if the server accepts requests, else 0, as in GET /health."),
        MetricEntry("reprise_rows", "gauge", "Number of sequences in prefill or decode."),
        MetricEntry("reprise_waiting", "gauge", "Number of sequences in the request queue."),
        MetricEntry(
            "reprise_inter_token_seconds",
            "histogram",
            "Time between consecutive tokens of a sequence; 0 between tokens of the same step.",
            buckets=GAP_BOUNDS_S,
        ),
        MetricEntry("reprise_failed_steps_total", "counter", "Total number of steps that raised an error."),
        MetricEntry(
            "reprise_preemptions_total",
            "counter",
            "Total number of sequences put back into the queue because memory ran short.",
        ),
        MetricEntry(
            "reprise_plain_probes_total",
            "counter",
            "Total number of plain steps taken only to learn what they cost, as drafting is judged by it.",
        ),
        MetricEntry(
            "reprise_stalls_total",
            "counter",
            "Total number of stalls: work was waiting, but no step finished in time.",
        ),
    ),
)

TIME = MetricGroup(
    "Where time goes",
    True,
    (
        MetricEntry(
            "reprise_engine_seconds_total",
            "counter",
            "Total seconds of the engine's thread, by station. Every moment counts at one station.",
            ("station",),
        ),
        MetricEntry(
            "reprise_event_loop_seconds_total",
            "counter",
            "Total seconds of the server's event loop, by station.",
            ("station",),
        ),
    ),
    "Stations of the engine's thread: `idle` (no work), `calibration` (no work: the costs of steps are "
    "measured), `messages` (requests and cancellations arrive), "
    "`retiring` (rows are freed and their prefixes kept), `admission` (requests are admitted and cached "
    "prefixes looked up), `memory` (room is made for the next step), `planning` (draft lengths are chosen), "
    "`drafters`, `grammars` (CPU time; in the first idle moment their vocabulary is made), `draft_model`, "
    "`dispatch` (steps are prepared for the device), "
    "`waiting` (for the device, in decoding), `commit` (tokens become text and are sent), `prefill` (with "
    "waiting for the device), `other`. Stations of the event loop: `connections` (HTTP is parsed), "
    "`bodies` (small request bodies are parsed "
    "and validated; large ones are parsed on a thread), `submission` (requests are passed to the engine), "
    "`output` (text is split into content, reasoning and tool calls), `format` (responses and events are "
    "written).",
)

LOOP = MetricGroup(
    "The event loop",
    False,
    (
        MetricEntry(
            "reprise_event_loop_lag_seconds",
            "histogram",
            "How late the event loop wakes, measured by twenty timers a second.",
            buckets=_LAG_S,
        ),
        MetricEntry(
            "reprise_event_loop_holds_total",
            "counter",
            "Times that the event loop woke more than 0.1 seconds late, by the station that held it.",
            ("station",),
        ),
        MetricEntry(
            "reprise_event_loop_longest_hold_seconds",
            "gauge",
            "The longest time, in seconds of the processor, that the event loop worked without a pause, of "
            "those counted as holds.",
        ),
        MetricEntry(
            "reprise_wait_seconds_total",
            "counter",
            "Total seconds that requests waited for work outside of the event loop, by station.",
            ("station",),
        ),
    ),
    "`station` of the wait is `prompts`: chat templates are rendered, text is tokenized, grammars are "
    "compiled.",
)

_BY_MODEL = ("model",)

PREFIXES = MetricGroup(
    "The prefix cache",
    True,
    (
        MetricEntry("reprise_prefix_cache_bytes", "gauge", "Memory used by cached prefixes.", _BY_MODEL),
        MetricEntry(
            "reprise_prefix_cache_budget_bytes", "gauge", "Maximum memory for cached prefixes.", _BY_MODEL
        ),
        MetricEntry("reprise_prefix_cache_entries", "gauge", "Number of cached prefixes.", _BY_MODEL),
        MetricEntry(
            "reprise_prefix_cache_tokens",
            "gauge",
            "Number of cached tokens; a prefix shared by several entries counts once.",
            _BY_MODEL,
        ),
        MetricEntry(
            "reprise_prefix_cache_hits_total",
            "counter",
            "Total number of texts with a cached prefix.",
            _BY_MODEL,
        ),
        MetricEntry(
            "reprise_prefix_cache_misses_total",
            "counter",
            "Total number of texts without a cached prefix.",
            _BY_MODEL,
        ),
        MetricEntry(
            "reprise_prefix_cache_evictions_total",
            "counter",
            "Total number of prefixes evicted to free memory.",
            _BY_MODEL,
        ),
        MetricEntry(
            "reprise_prefix_cache_files", "gauge", "Number of files in --prefix-cache-dir.", _BY_MODEL
        ),
        MetricEntry(
            "reprise_prefix_cache_file_bytes",
            "gauge",
            "Disk space used by the files in --prefix-cache-dir.",
            _BY_MODEL,
        ),
    ),
    "`model` is `target`, whose texts are prompts, or `draft`: the draft model has a prefix cache of its "
    "own, in its own tokens, and no files. With several models it is the name of a loaded one, with ` draft` "
    "behind it for its draft model. Absent if the prefix cache is off (`--prefix-cache-bytes 0`).",
)

MODELS = MetricGroup(
    "Models",
    True,
    (
        MetricEntry("reprise_model_loaded", "gauge", "1 if the model's weights are in memory.", _BY_MODEL),
        MetricEntry("reprise_model_rows", "gauge", "Number of its sequences in the batch.", _BY_MODEL),
        MetricEntry(
            "reprise_model_waiting",
            "gauge",
            "Number of requests that wait for the model, or for a row of it.",
            _BY_MODEL,
        ),
        MetricEntry("reprise_model_weight_bytes", "gauge", "Memory for its weights while loaded.", _BY_MODEL),
        MetricEntry("reprise_model_loads_total", "counter", "Total number of its loads.", _BY_MODEL),
        MetricEntry("reprise_model_unloads_total", "counter", "Total number of its unloads.", _BY_MODEL),
    ),
    "`model` is the name of each model that was asked for, and of the one that the server started with.",
)

_BY_RANK = ("rank",)
RANKS = MetricGroup(
    "Machines that share a model",
    True,
    (
        MetricEntry("reprise_rank_weight_bytes", "gauge", "Memory for its part of the weights.", _BY_RANK),
        MetricEntry("reprise_rank_active_bytes", "gauge", "Memory used by its MLX arrays.", _BY_RANK),
        MetricEntry(
            "reprise_rank_commands_total", "counter", "Total number of commands that it has done.", _BY_RANK
        ),
        MetricEntry(
            "reprise_rank_sent_bytes_total",
            "counter",
            "Total bytes of commands that rank 0 has sent to it.",
            _BY_RANK,
        ),
        MetricEntry(
            "reprise_rank_silent_seconds", "gauge", "Time since it was last heard of by rank 0.", _BY_RANK
        ),
        MetricEntry(
            "reprise_rank_round_trip_seconds",
            "gauge",
            "Time that a message to it and back took at the start.",
            _BY_RANK,
        ),
    ),
    "`rank` is the number of each machine, which the banner gives with its address; 0 is the one that "
    "serves. Every half second the others say how far they are. Absent if the model is on one machine.",
)

NGRAMS = MetricGroup(
    "The n-gram table",
    True,
    (
        MetricEntry("reprise_ngram_table_entries", "gauge", "Capacity of the table in entries."),
        MetricEntry("reprise_ngram_table_occupied_entries", "gauge", "Number of occupied entries."),
        MetricEntry(
            "reprise_ngram_table_occupancy_ratio", "gauge", "Occupied entries divided by the capacity."
        ),
        MetricEntry("reprise_ngram_table_bytes", "gauge", "Memory used by the table."),
        MetricEntry(
            "reprise_ngram_table_inserts_total", "counter", "Total number of tokens written to the table."
        ),
        MetricEntry(
            "reprise_ngram_table_overwrites_total",
            "counter",
            "Total number of writes that replaced a different token.",
        ),
        MetricEntry(
            "reprise_ngram_table_hits_total", "counter", "Total number of tokens that the table drafted."
        ),
        MetricEntry(
            "reprise_ngram_table_misses_total", "counter", "Total number of lookups that found nothing."
        ),
    ),
    "Absent if the model does not support drafting. With several models it is that of the one that the "
    "server started with, while that is loaded.",
)

RESPONSES = MetricGroup(
    "Stored responses",
    True,
    (
        MetricEntry("reprise_response_store_bytes", "gauge", "Memory used by stored responses."),
        MetricEntry(
            "reprise_response_store_budget_bytes",
            "gauge",
            "Maximum memory for stored responses (--response-store-bytes).",
        ),
        MetricEntry("reprise_response_store_responses", "gauge", "Number of stored responses."),
    ),
)

MEMORY = MetricGroup(
    "Memory and the process",
    True,
    (
        MetricEntry("reprise_mlx_active_bytes", "gauge", "Memory used by MLX arrays."),
        MetricEntry("reprise_mlx_peak_bytes", "gauge", "Maximum memory used by MLX arrays since the start."),
        MetricEntry("reprise_mlx_cache_bytes", "gauge", "Memory in MLX's cache of freed buffers."),
        MetricEntry("process_resident_memory_bytes", "gauge", "Resident memory size in bytes."),
        MetricEntry(
            "process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds."
        ),
        MetricEntry(
            "process_start_time_seconds",
            "gauge",
            "Start time of the process, in seconds since the Unix epoch.",
        ),
        MetricEntry("process_open_fds", "gauge", "Number of open file descriptors."),
        MetricEntry("process_threads", "gauge", "Number of OS threads in the process."),
    ),
)


_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_QUEUE_S = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_REQUEST_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1)
_TOKENS_PER_FORWARD = (1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32)

REQUESTS = MetricGroup(
    "Requests",
    False,
    (
        MetricEntry(
            "reprise_requests_total",
            "counter",
            "Total number of HTTP requests, by endpoint and status.",
            ("endpoint", "status"),
        ),
        MetricEntry("reprise_requests_in_progress", "gauge", "Number of HTTP requests in progress."),
        MetricEntry(
            "reprise_errors_total",
            "counter",
            "Total number of errors sent to clients, as a response or in a stream, by code.",
            ("code",),
        ),
        MetricEntry(
            "reprise_request_duration_seconds",
            "histogram",
            "Duration of HTTP requests that generate tokens, from arrival to the end of the response.",
            buckets=_REQUEST_S,
        ),
        MetricEntry(
            "reprise_tool_call_parses_total",
            "counter",
            "Total number of texts between tool call markers, by outcome.",
            ("outcome",),
        ),
    ),
    "`endpoint` is the path of an endpoint that `GET /` lists, or `other`. `status` is 499 if the client "
    "disconnected. `code` is the error object's `code`, or its `type` if it has no code. `outcome` is "
    "`parsed`, or `malformed`: the text is sent as it is.",
)

SEQUENCES = MetricGroup(
    "Sequences and their tokens",
    False,
    (
        MetricEntry(
            "reprise_sequences_total",
            "counter",
            "Total number of sequences that have ended, by how they ended.",
            ("end",),
        ),
        MetricEntry(
            "reprise_cancelled_sequences_total",
            "counter",
            "Total number of sequences cancelled because the client left, by the stage that they were in.",
            ("stage",),
        ),
        MetricEntry(
            "reprise_prompt_tokens_total",
            "counter",
            "Total number of prompt tokens; a prompt with several choices counts once.",
        ),
        MetricEntry(
            "reprise_cached_prompt_tokens_total",
            "counter",
            "Total number of prompt tokens taken from the prefix cache.",
        ),
        MetricEntry("reprise_completion_tokens_total", "counter", "Total number of generated tokens."),
        MetricEntry(
            "reprise_queue_seconds",
            "histogram",
            "Time that admitted sequences spent in the request queue.",
            buckets=_QUEUE_S,
        ),
        MetricEntry(
            "reprise_time_to_first_token_seconds",
            "histogram",
            "Time from submission to the first token.",
            buckets=_FIRST_TOKEN_S,
        ),
    ),
    "A sequence is one choice of one prompt. It is counted when it ends. `end` is `stop`, `length`, "
    "`cancelled` (the client left), `request` (this request failed), `grammar` (its grammar took too much "
    "computation), `engine` (the engine died) or `draining` (the server was stopping). `stage` is `waiting`, "
    "`prefill` or `decode`.",
    is_by_model=True,
)

DRAFTS = MetricGroup(
    "Drafts",
    False,
    (
        MetricEntry(
            "reprise_drafted_tokens_total",
            "counter",
            "Total number of drafted tokens that were verified.",
            ("source",),
        ),
        MetricEntry(
            "reprise_accepted_tokens_total",
            "counter",
            "Total number of drafted tokens that were accepted.",
            ("source",),
        ),
        MetricEntry(
            "reprise_draft_translations_total",
            "counter",
            "Total number of the draft model's drafts that needed translation, by outcome.",
            ("strategy", "outcome"),
        ),
        MetricEntry(
            "reprise_draft_resynchronisations_total",
            "counter",
            "Total number of translations that had to search for a token boundary shared by both sides.",
            ("strategy",),
        ),
        MetricEntry(
            "reprise_draft_model_tokens_total",
            "counter",
            "Total number of the draft model's tokens that were verified, by translation strategy.",
            ("strategy",),
        ),
        MetricEntry(
            "reprise_draft_model_accepted_tokens_total",
            "counter",
            "Total number of the draft model's tokens that were accepted, by translation strategy.",
            ("strategy",),
        ),
        MetricEntry(
            "reprise_forwards_total",
            "counter",
            "Total number of forward passes of decoding, summed over sequences.",
        ),
        MetricEntry(
            "reprise_undrafted_steps_total",
            "counter",
            "Total number of steps planned without a draft though one was allowed, summed over sequences, by "
            "reason.",
            ("reason",),
        ),
        MetricEntry(
            "reprise_gate_decisions_total",
            "counter",
            "Total number of sequences, by the gate's decision.",
            ("decision",),
        ),
        MetricEntry(
            "reprise_acceptance_ratio",
            "histogram",
            "Acceptance rate of each sequence: accepted tokens divided by drafted tokens.",
            buckets=_SHARES,
        ),
        MetricEntry(
            "reprise_tokens_per_forward",
            "histogram",
            "Generated tokens per forward pass of each sequence.",
            buckets=_TOKENS_PER_FORWARD,
        ),
    ),
    "`source` is the drafter. `decision` is `lookup`, `draft-model`, `mtp`, `dflash`, `wedlm` or `plain`. "
    "`reason` is `unmatched`, `unlikely`, `dear`, `spent`, `unread` or `inexact` "
    "([what they mean](drafting.md#why-was-nothing-drafted)). "
    "`strategy` is that of `--draft-translation` in use. `outcome` is `translated`, `absorbed` (nothing new "
    "was left of the draft) or `skipped` (the target's tokens cannot express it exactly).",
    is_by_model=True,
)

EMBEDDINGS = MetricGroup(
    "Embeddings",
    True,
    (
        MetricEntry(
            "reprise_embedded_total",
            "counter",
            "Total number of texts embedded, and of documents rated.",
        ),
        MetricEntry(
            "reprise_embedded_tokens_total",
            "counter",
            "Total number of their tokens, special tokens included and padding left out.",
        ),
        MetricEntry(
            "reprise_embedding_waiting",
            "gauge",
            "Texts and documents of requests that are queued or running, without a vector or score yet.",
        ),
    ),
)


ENDPOINTS = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /infill",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/responses",
    "POST /v1/responses/input_tokens",
    "POST /v1/responses/compact",
    "GET /v1/responses/{id}",
    "DELETE /v1/responses/{id}",
    "POST /v1/responses/{id}/cancel",
    "GET /v1/responses/{id}/input_items",
    "POST /api/chat",
    "POST /api/generate",
    "GET /api/tags",
    "POST /api/show",
    "GET /api/ps",
    "POST /api/pull",
    "GET /api/version",
    "POST /api/embed",
    "POST /api/embeddings",
    "POST /api/create",
    "POST /api/copy",
    "POST /api/push",
    "POST /api/blobs/{digest}",
    "DELETE /api/delete",
    "POST /v1/embeddings",
    "POST /v1/rerank",
    "POST /rerank",
    "POST /v2/rerank",
    "POST /tokenize",
    "POST /detokenize",
    "GET /tokenizer_info",
    "GET /v1/models",
    "GET /v1/models/{name}",
    "POST /v1/models/load",
    "POST /v1/models/unload",
    "POST /v1/models/pull",
    "GET /v1/ngram-mod",
    "POST /v1/ngram-mod/reset",
    "POST /v1/ngram-mod/save",
    "POST /v1/ngram-mod/load",
    "GET /v1/connect",
    "GET /v1/requests",
    "GET /metrics",
    "GET /health",
)
_PATHS = tuple(dict.fromkeys(endpoint.split()[1] for endpoint in ENDPOINTS))
_OPEN_ENDED = tuple(path for path in reversed(_PATHS) if "{" in path)
"""Paths with a parameter. Of two with the same prefix, the longer one comes first."""


def endpoint_of(path: str) -> str:
    """Return the endpoint label of a path, or "other" for any unknown path, as labels must stay few."""
    if path in _PATHS:
        return path
    return next((known for known in _OPEN_ENDED if _fits(path, known)), "other")


def _fits(path: str, known: str) -> bool:
    return path.startswith(known.partition("{")[0]) and path.endswith(known.partition("}")[2])


GROUPS = (
    REQUESTS,
    SEQUENCES,
    DRAFTS,
    ENGINE,
    EMBEDDINGS,
    TIME,
    LOOP,
    MODELS,
    RANKS,
    PREFIXES,
    NGRAMS,
    RESPONSES,
    MEMORY,
)
