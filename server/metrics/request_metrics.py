"""The metrics of requests: their times, their tokens and their drafts."""

from reprise.server.metrics.metric import MetricEntry, MetricGroup

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
    "`parsed`; or the text is sent as it is, because it is `malformed`, hit the `limit` of time or memory, "
    "or found the client's queue full (`queue_full`).",
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
