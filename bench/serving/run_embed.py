"""`reprise bench embed`: embed the same texts on several servers, by batch and length, and compare.

Send texts of random words to /v1/embeddings of each server, one request after the other, and measure texts
and tokens per second for each length of a text and each number of texts in a request. Each round has new
texts, the same ones for all, and begins with a different server. --sentence-transformers also runs that
library, in a process of its own and without HTTP. Ratios are to the first server. Vectors are compared with
those of the first: the least cosine is shown. Exit status 1 if anything failed.
"""

import argparse
import base64
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import httpx
import numpy as np

from reprise.bench import document, options, outputs
from reprise.bench.experiment import Experiment, Row, grouped, measured
from reprise.bench.options import Flag
from reprise.bench.outputs import Work
from reprise.bench.serving import servers, traffic
from reprise.bench.serving.sentence_transformers import LIBRARY, start_library
from reprise.bench.statistics import compare
from reprise.bench.tables import Column
from reprise.bench.workloads.words import ADJECTIVES, NOUNS, VERBS
from reprise.config.loopback import takes_proxy
from reprise.engine.model.loading import load_tokenizer
from reprise.engine.text.tokenizer import Tokenizer

IDLE_LIMIT_S = 600.0

FLAGS = (
    Flag("--model", options.model, "MODEL", ..., "Model that embeds."),
    *servers.named(),
    Flag("--sentence-transformers", str, "PYTHON", None,
         "Also run sentence-transformers, with a Python that has it; the same folder is its model."),
    Flag("--lengths", options.levels, "N,...", (16, 64, 256), "Tokens of a text, special ones included."),
    Flag("--batches", options.levels, "N,...", (1, 8, 64), "Texts of a request."),
    Flag("--requests", options.count, "N", 4, "Requests of each round."),
    *options.shared(rounds=3, seed=1, json=None, csv=None),
)  # fmt: skip

COLUMNS = [
    Column("length", "tokens\na text", is_key=True), Column("batch", "texts\na request", is_key=True),
    Column("name", "peer", is_key=True), Column("texts_per_s", "texts/s", "1"),
    Column("tokens_per_s", "tokens/s", "0"), Column("request_ms", "request,\nms", "0"),
    Column(traffic.ratio_text("ratio"), "ratio"), Column("cosine", "least\ncosine", "6"),
    Column("failed", "failed", trivial=0),
]  # fmt: skip
NOTES = (
    "texts/s: median over rounds; request: median over all requests, without the warm-up.",
    f"ratio: to the first peer, with the lowest and highest of a round. {LIBRARY} has no HTTP to do.",
)

Vectors = np.ndarray[Any, Any]
Embed = Callable[[Sequence[str]], tuple[float, Vectors]]
"""Embeds texts; returns the seconds that it took, and (texts, dimensions) vectors. Raises for a failure."""


class Case(NamedTuple):
    """The requests of a round, each of `batch` texts of `length` tokens. round: 0 for the warm-up."""

    length: int
    batch: int
    round: int
    requests: list[list[str]]


def run(arguments: argparse.Namespace) -> int:
    """Measure and print. Return 1 if a request failed, 2 if the arguments cannot be combined."""
    servers.check(arguments, [LIBRARY])
    record = document.new_document(arguments)
    cases = make_cases(arguments, load_tokenizer(arguments.model))
    with ExitStack() as children:
        flags = {servers.LLAMA: ("--embedding",)}
        peers: dict[str, Embed] = {
            name: partial(ask, address)
            for name, address in servers.addresses(arguments, arguments.model, children, flags).items()
        }
        if python := arguments.sentence_transformers:
            peers[LIBRARY] = start_library(children, python, str(arguments.model))
        rows = measure(peers, cases)
    found = traffic.figures_of(rows, "length", "batch", figures=_figures)
    record["embed"] = {"rows": found}
    title, failed = "The same texts on each peer", {row["error"] for row in rows if row["error"]}
    notes = [*NOTES, *(f"! failed: {error}" for error in sorted(failed))]
    outputs.report(arguments, record, found, outputs.Table(COLUMNS, title, notes, group="length"))
    return int(bool(failed))


def make_cases(arguments: argparse.Namespace, tokenizer: Tokenizer) -> dict[str, Case]:
    """Return a case for each text length, batch size and round, by name; round 0 is the warm-up."""
    rng = random.Random(arguments.seed)
    cases = {}
    for length, batch, at in product(arguments.lengths, arguments.batches, range(arguments.rounds + 1)):
        requests = [
            [make_text(tokenizer, length, rng) for _ in range(batch)] for _ in range(arguments.requests)
        ]
        cases[f"{length} tokens, {batch} texts, round {at}"] = Case(length, batch, at, requests)
    return cases


def make_text(tokenizer: Tokenizer, num_tokens: int, rng: random.Random) -> str:
    """Return random words that take num_tokens tokens, special tokens included, or a few less."""
    # No word is shorter than a token.
    words = rng.choices([*NOUNS, *ADJECTIVES, *VERBS], k=num_tokens)
    counts = range(1, num_tokens + 1)
    fitting = bisect_right(counts, num_tokens, key=lambda n: len(tokenizer.encode(" ".join(words[:n]))))
    return " ".join(words[: max(1, fitting)])


def ask(address: servers.Address, texts: Sequence[str]) -> tuple[float, Vectors]:
    """Embed texts on a server; return the seconds that it took, and (texts, dimensions) vectors.

    Raises httpx.HTTPError, and ValueError or LookupError for a response that has no vectors.
    """
    body = {"model": address.model, "input": list(texts), "encoding_format": "base64"}
    start = perf_counter()
    response = httpx.post(
        f"{address.url}/v1/embeddings",
        json=body,
        headers=address.headers,
        timeout=IDLE_LIMIT_S,
        trust_env=takes_proxy(address.url, has_key=bool(address.headers)),
    )
    seconds = perf_counter() - start
    given = [one["embedding"] for one in response.raise_for_status().json()["data"]]
    return seconds, np.array([
        np.frombuffer(base64.b64decode(one), "<f4") if isinstance(one, str) else one for one in given
    ])  # fmt: skip


def measure(peers: dict[str, Embed], cases: dict[str, Case]) -> list[Row]:
    """Send all requests to all peers; return a row for each. vectors, seconds: None if the request failed."""
    work = Work({"": len(peers) * sum(len(case.requests) for case in cases.values())})

    def embed(name: str, case: Case) -> list[Row]:
        work.begin(f"{case.length} tokens, {case.batch} texts, round {case.round}: {name}")
        rows = []
        for texts in case.requests:
            seconds, vectors, error = None, None, None
            try:
                seconds, vectors = peers[name](texts)
            except (httpx.HTTPError, ValueError, LookupError, TypeError, OSError) as fault:
                error = f"{name}: {type(fault).__name__}: {str(fault).partition(chr(10))[0]}"
            rows.append({
                "length": case.length, "batch": case.batch, "round": case.round,
                "seconds": seconds, "vectors": vectors, "error": error,
            })  # fmt: skip
            work.advance()
        return rows

    arms = {name: partial(embed, name) for name in peers}
    with work:
        return Experiment(arms, cases, 1, has_warm_up=lambda _: False, order="rotate").run()


def _figures(rows: Sequence[Row], first: Sequence[Row]) -> Row:
    speeds, taken = _speeds(rows), [row["seconds"] for row in measured(rows) if row["seconds"]]
    known = [one for one in speeds if one]
    texts_per_s = median(known) if known else None
    ratio = compare(speeds, _speeds(first)) or {}
    pairs = [(one["vectors"], other["vectors"]) for one, other in zip(first, rows, strict=True)]
    cosines = [_cosine(one, other) for one, other in pairs if one is not None and other is not None]
    return {
        "name": rows[0]["arm"], "texts_per_s": texts_per_s,
        "tokens_per_s": texts_per_s and texts_per_s * rows[0]["length"],
        "request_ms": 1000 * median(taken) if taken else None,
        "ratio": None if rows is first else ratio.get("of_medians"),
        "ratio_low": ratio.get("lowest"), "ratio_high": ratio.get("highest"),
        "cosine": None if rows is first else min(cosines, default=None),
        "failed": sum(bool(row["error"]) for row in rows),
    }  # fmt: skip


def _speeds(rows: Sequence[Row]) -> list[float | None]:
    """Return the texts per second of each measured round; None for one with a failure."""
    rounds = grouped(measured(rows), "round").values()
    return [
        None
        if any(row["error"] for row in one)
        else len(one) * one[0]["batch"] / sum(row["seconds"] for row in one)
        for one in rounds
    ]


def _cosine(one: Vectors, other: Vectors) -> float:
    """Return the least cosine of two peers' vectors of the same texts; -1 if they cannot be compared."""
    if one.shape != other.shape:
        return -1.0
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float((np.sum(one * other, axis=1) / norms).min())
