"""Every metric there is: GET /metrics has what is listed here, and docs/metrics.md is made from it."""

from dataclasses import dataclass
from typing import Literal

from engine.request import GAP_BOUNDS_S

_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_QUEUE_S = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_REQUEST_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1)
_TOKENS_PER_FORWARD = (1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True, slots=True)
class MetricEntry:
    """A metric.

    text: what it says, in a sentence. labels: by what it is told apart.
    buckets: upper bounds, of a histogram that the server itself keeps.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricGroup:
    """Metrics about one thing.

    is_scraped: whether they are read from their source at each scrape, and not counted as things happen.
    note: what to know of all of them, in Markdown.
    """

    title: str
    is_scraped: bool
    metrics: tuple[MetricEntry, ...]
    note: str = ""


REQUESTS = MetricGroup(
    "Requests",
    False,
    (
        MetricEntry(
            "reprise_requests_total",
            "counter",
            "HTTP requests by address and status; a client that left is a 499.",
            ("endpoint", "status"),
        ),
        MetricEntry(
            "reprise_requests_in_progress", "gauge", "HTTP requests that have come and are not answered yet."
        ),
        MetricEntry(
            "reprise_errors_total",
            "counter",
            "Errors that clients were told, in a response or in a stream, by code.",
            ("code",),
        ),
        MetricEntry(
            "reprise_request_duration_seconds",
            "histogram",
            "From a request for tokens to the end of its answer.",
            buckets=_REQUEST_S,
        ),
    ),
    "`endpoint` is one of the addresses that `GET /` lists, or `other`. `code` is that of the error object, "
    "or its `type` where it has none.",
)

SEQUENCES = MetricGroup(
    "Sequences and their tokens",
    False,
    (
        MetricEntry(
            "reprise_sequences_total", "counter", "Sequences that came to their end, by how.", ("end",)
        ),
        MetricEntry(
            "reprise_cancelled_sequences_total",
            "counter",
            "Sequences that ended because their client left, by how far they had got.",
            ("stage",),
        ),
        MetricEntry("reprise_prompt_tokens_total", "counter", "Prompt tokens, those of n choices once."),
        MetricEntry(
            "reprise_cached_prompt_tokens_total", "counter", "Prompt tokens that were not computed again."
        ),
        MetricEntry("reprise_completion_tokens_total", "counter", "Generated tokens."),
        MetricEntry(
            "reprise_queue_seconds",
            "histogram",
            "From submission to admission, of sequences that were admitted.",
            buckets=_QUEUE_S,
        ),
        MetricEntry(
            "reprise_time_to_first_token_seconds",
            "histogram",
            "From submission to the first token.",
            buckets=_FIRST_TOKEN_S,
        ),
    ),
    "A sequence is one choice of one prompt, and is counted when it ends. `end` is `stop`, `length`, "
    "`cancelled` (its client left), `request` (it failed, others went on), `engine` (the engine died) or "
    "`draining` (the server stopped). `stage` is `waiting`, `prefill` or `decode`.",
)

DRAFTS = MetricGroup(
    "Drafts",
    False,
    (
        MetricEntry(
            "reprise_drafted_tokens_total", "counter", "Drafted tokens that were verified.", ("source",)
        ),
        MetricEntry(
            "reprise_accepted_tokens_total", "counter", "Drafted tokens that were right.", ("source",)
        ),
        MetricEntry(
            "reprise_draft_translations_total",
            "counter",
            "Drafts of the draft model, by what translation into the model's vocabulary made of them.",
            ("strategy", "outcome"),
        ),
        MetricEntry(
            "reprise_draft_resynchronisations_total",
            "counter",
            "Those for which an edge that both vocabularies share had to be looked for.",
            ("strategy",),
        ),
        MetricEntry(
            "reprise_draft_model_tokens_total",
            "counter",
            "Tokens that came of those drafts and were verified.",
            ("strategy",),
        ),
        MetricEntry(
            "reprise_draft_model_accepted_tokens_total",
            "counter",
            "Those of them that were right.",
            ("strategy",),
        ),
        MetricEntry(
            "reprise_forwards_total", "counter", "Forwards that decoding took, counted for each sequence."
        ),
        MetricEntry(
            "reprise_gate_decisions_total",
            "counter",
            "Sequences by what the gate made of them.",
            ("decision",),
        ),
        MetricEntry(
            "reprise_acceptance_ratio",
            "histogram",
            "Share of a sequence's drafted tokens that were right.",
            buckets=_SHARES,
        ),
        MetricEntry(
            "reprise_tokens_per_forward",
            "histogram",
            "A sequence's tokens for each of its forwards.",
            buckets=_TOKENS_PER_FORWARD,
        ),
    ),
    "`source` is the drafter; `decision` is `lookup`, `draft-model` or `plain`; `strategy` is that of "
    "`--draft-translation`; `outcome` is `translated`, `absorbed` (nothing new was left of it) or `skipped` "
    "(it could not be said exactly).",
)

ENGINE = MetricGroup(
    "The engine",
    True,
    (
        MetricEntry("reprise_ready", "gauge", "1 while requests are taken, else 0, as GET /health has it."),
        MetricEntry("reprise_rows", "gauge", "Sequences that decode or prefill."),
        MetricEntry("reprise_waiting", "gauge", "Sequences that wait for a row."),
        MetricEntry(
            "reprise_inter_token_seconds",
            "histogram",
            "Time between two tokens of a sequence; those of one step come together, with 0 between them.",
            buckets=GAP_BOUNDS_S,
        ),
        MetricEntry("reprise_failed_steps_total", "counter", "Steps that raised an error."),
        MetricEntry(
            "reprise_preemptions_total",
            "counter",
            "Sequences that went back into the queue, for want of memory.",
        ),
        MetricEntry(
            "reprise_stalls_total", "counter", "Times that nothing went on though there was work to do."
        ),
    ),
)

PREFIXES = MetricGroup(
    "The prefix cache",
    True,
    (
        MetricEntry("reprise_prefix_cache_bytes", "gauge", "Memory that kept prefixes take."),
        MetricEntry("reprise_prefix_cache_budget_bytes", "gauge", "The most that they may take."),
        MetricEntry("reprise_prefix_cache_entries", "gauge", "Prefixes that are kept."),
        MetricEntry("reprise_prefix_cache_tokens", "gauge", "Tokens in them, shared beginnings once."),
        MetricEntry("reprise_prefix_cache_hits_total", "counter", "Prompts whose beginning was found."),
        MetricEntry("reprise_prefix_cache_misses_total", "counter", "Prompts of which nothing was found."),
        MetricEntry(
            "reprise_prefix_cache_evictions_total", "counter", "Prefixes that were dropped to make room."
        ),
        MetricEntry("reprise_prefix_cache_files", "gauge", "Files of its second tier (--prefix-cache-dir)."),
        MetricEntry("reprise_prefix_cache_file_bytes", "gauge", "What they take on disk."),
    ),
    "Absent where there is no prefix cache (`--prefix-cache-bytes 0`).",
)

NGRAMS = MetricGroup(
    "The n-gram table",
    True,
    (
        MetricEntry("reprise_ngram_table_entries", "gauge", "Entries that the table has room for."),
        MetricEntry("reprise_ngram_table_occupied_entries", "gauge", "Entries that hold something."),
        MetricEntry(
            "reprise_ngram_table_occupancy_ratio", "gauge", "Share of the entries that hold something."
        ),
        MetricEntry("reprise_ngram_table_bytes", "gauge", "Memory that the table takes."),
        MetricEntry("reprise_ngram_table_inserts_total", "counter", "Tokens written into it."),
        MetricEntry("reprise_ngram_table_overwrites_total", "counter", "Writes that replaced another token."),
        MetricEntry("reprise_ngram_table_hits_total", "counter", "Tokens that it drafted."),
        MetricEntry("reprise_ngram_table_misses_total", "counter", "Lookups that found nothing."),
    ),
    "Absent where nothing can be drafted for the model.",
)

RESPONSES = MetricGroup(
    "Kept responses",
    True,
    (
        MetricEntry("reprise_response_store_bytes", "gauge", "Memory that kept responses count for."),
        MetricEntry(
            "reprise_response_store_budget_bytes", "gauge", "The most that they may (--response-store-bytes)."
        ),
        MetricEntry("reprise_response_store_responses", "gauge", "Responses that are kept."),
    ),
)

MEMORY = MetricGroup(
    "Memory and the process",
    True,
    (
        MetricEntry("reprise_mlx_active_bytes", "gauge", "Memory of MLX's arrays."),
        MetricEntry("reprise_mlx_peak_bytes", "gauge", "The most that they ever took."),
        MetricEntry("reprise_mlx_cache_bytes", "gauge", "Memory that MLX keeps to use again."),
        MetricEntry(
            "process_resident_memory_bytes", "gauge", "Memory of the process that is not swapped out."
        ),
        MetricEntry("process_cpu_seconds_total", "counter", "Processor time that the process has used."),
        MetricEntry("process_start_time_seconds", "gauge", "When the process began, in seconds since 1970."),
        MetricEntry("process_open_fds", "gauge", "Files and connections that the process has open."),
        MetricEntry("process_threads", "gauge", "Threads of the process."),
    ),
)

GROUPS = (REQUESTS, SEQUENCES, DRAFTS, ENGINE, PREFIXES, NGRAMS, RESPONSES, MEMORY)
