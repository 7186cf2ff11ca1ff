"""Define a metric, and a group of metrics."""

from dataclasses import dataclass
from typing import Literal

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
