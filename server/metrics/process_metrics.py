"""The metrics of the process: engine, event loop, caches, models and memory."""

from reprise.engine.interface.status import GAP_BOUNDS_S
from reprise.server.metrics.metric import MetricEntry, MetricGroup

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
    "`station` is `prompts` (chat templates are rendered, text is tokenized, grammars are compiled) or "
    "`tool_calls` (tool calls are parsed).",
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
