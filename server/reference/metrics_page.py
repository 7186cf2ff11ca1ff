"""Generate docs/metrics.md."""

from reprise.config.version import VERSION
from reprise.server.metrics.definitions import GROUPS
from reprise.server.metrics.metric import MODEL, MetricEntry, MetricGroup
from reprise.server.reference.markdown import table

_HEADER = """\
# Metrics

Generated from the code by `python -m reprise.server.reference`, for version {version}. Do not edit.

`GET /metrics` returns these metrics in Prometheus' text format. Counters start at 0 when the server starts.
A histogram `x` has the series `x_bucket`, `x_sum` and `x_count`; the table lists the upper bounds of its
buckets. If the server has API keys, Prometheus must send one too.
"""


def write_metrics_page() -> str:
    """Return the page: a section for each group of metrics."""
    return "\n".join([_HEADER.format(version=VERSION), *map(_section, GROUPS)])


def _section(group: MetricGroup) -> str:
    rows = [
        (f"`{m.name}`", _kind(m), ", ".join(f"`{label}`" for label in m.labels), m.help)
        for m in group.metrics
    ]
    lines = [f"## {group.title}\n", table(("Metric", "Type", "Labels", "Help"), rows)]
    notes = [group.note] if group.note else []
    if group.is_by_model:
        notes.append(f"With several models each of these has the label `{MODEL}` too, the name of its model.")
    if notes:
        lines.insert(1, f"{' '.join(notes)}\n")
    return "\n".join(lines)


def _kind(metric: MetricEntry) -> str:
    bounds = ", ".join(f"{bound:g}" for bound in metric.buckets)
    return f"{metric.kind}: {bounds}" if bounds else metric.kind
