"""Keep the acceptance rates learned over all requests in a file, from one run to the next."""

import hashlib
import json
import logging
from pathlib import Path

from reprise.config.settings import Settings
from reprise.config.whole_file import read_object, write_in_folder
from reprise.engine.speculative.acceptance import AcceptanceCounts

log = logging.getLogger("reprise.engine")

KEPT_TOKENS = 30.0
"""Observed tokens of earlier runs count as at most this many, so that new ones soon outweigh them."""


def find_file(settings: Settings, model_name: str, vocabulary: str) -> Path | None:
    """Return the file of a model's rates, in the folder of kept prefixes; None if there is no folder.

    vocabulary: fingerprint of the model's vocabulary.
    """
    if settings.prefix_cache_dir is None:
        return None
    key = hashlib.sha256(f"{model_name} {vocabulary}".encode()).hexdigest()[:16]
    return Path(settings.prefix_cache_dir) / f"acceptance-{key}.json"


def restore(counts: AcceptanceCounts, file: Path | None) -> None:
    """Add the rates in the file to the counts. A file that is missing or cannot be read is ignored."""
    found = {} if file is None else read_object(file, log, "acceptance rates are learned anew")
    for source, buckets in found.items():
        try:
            rows = [(int(bucket), float(accepted), float(total)) for bucket, accepted, total in buckets]
        except (TypeError, ValueError):
            log.warning("%s is not a file of acceptance rates; they are learned anew", file)
            return
        for bucket, accepted, total in rows:
            if 0 <= accepted <= total and total > 0:
                weight = min(total, KEPT_TOKENS) / total
                counts.counts[source, bucket] = accepted * weight, total * weight


def save(counts: AcceptanceCounts, file: Path | None) -> None:
    """Write the learned acceptance rates to the file, if there is one. Logs a failure."""
    if file is None:
        return
    by_source: dict[str, list[tuple[int, float, float]]] = {}
    for (source, bucket), (accepted, total) in counts.counts.items():
        by_source.setdefault(source, []).append((bucket, accepted, total))
    try:
        write_in_folder(file, json.dumps(by_source).encode())
    except OSError as fault:
        log.error("acceptance rates could not be saved to %s: %s", file, fault.strerror or fault)
