"""All metrics as one Markdown text."""

from importlib.metadata import version

from server.metrics.definitions import GROUPS, MetricEntry, MetricGroup
from server.reference.markdown import table

_BEFORE = """\
# The metrics, one by one

Made from the code by `python -m server.reference`, for version {version}; do not edit.

`GET /metrics` has them in Prometheus' text format. Counters count since the start. A histogram `x` is there
as `x_bucket`, `x_sum` and `x_count`; its buckets are given by their upper bounds. On a server with API keys a
scrape needs one too.
"""


def write_metrics_page() -> str:
    """All metrics, group by group."""
    return "\n".join([_BEFORE.format(version=version("reprise")), *map(_section, GROUPS)])


def _section(group: MetricGroup) -> str:
    rows = [
        (f"`{m.name}`", _kind(m), ", ".join(f"`{label}`" for label in m.labels), m.help)
        for m in group.metrics
    ]
    lines = [f"## {group.title}\n", table(("Metric", "Kind", "Labels", "What it says"), rows)]
    if group.note:
        lines.insert(1, f"{group.note}\n")
    return "\n".join(lines)


def _kind(metric: MetricEntry) -> str:
    bounds = ", ".join(f"{bound:g}" for bound in metric.buckets)
    return f"{metric.kind}: {bounds}" if bounds else metric.kind
