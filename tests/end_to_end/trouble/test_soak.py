"""The real server under mixed traffic for minutes: no request is dropped or fails, and nothing leaks.

.venv/bin/python -m pytest tests/end_to_end/trouble/test_soak.py -m slow    two minutes
.venv/bin/python -m pytest tests/end_to_end/trouble/test_soak.py -m soak -s  half an hour, and its figures
"""

import asyncio
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.end_to_end.conftest import serving, with_constant
from tests.end_to_end.trouble.traffic import Traffic

NUM_CLIENTS = 12
MEBIBYTE = 2**20
PREFIX_CACHE_BYTES = 16 * MEBIBYTE
SLACK_BYTES = 32 * MEBIBYTE
"""Tolerated growth of the process, because the allocator returns memory late."""
HELD_OVER_COUNTED = 1.25
"""MLX may allocate two pages more than a small array needs; 1.10 times in total was measured."""
FLAGS = [
    # Low bounds, so that everything that may grow reaches its bound soon.
    *("--max-queue", "64", "--prefix-cache-bytes", str(PREFIX_CACHE_BYTES)),
    *("--ngram-table-entries", "65536", "--log-format", "json"),
]


@pytest.mark.parametrize(
    "duration_s",
    [
        pytest.param(110, id="two minutes", marks=pytest.mark.slow),
        pytest.param(1800, id="half an hour", marks=pytest.mark.soak),
    ],
)
@pytest.mark.timeout(2400)
async def test_a_server_under_mixed_traffic_stays_as_it_was(duration_s, tmp_path):
    command = with_constant("reprise.server.openai_api.responses.store.STORE_BYTES", 256 * 1024)
    with serving(tmp_path, *FLAGS, command=command) as (url, printed):
        before = await _scrape(url)
        # The warm-up creates all that is created once: thread pools, compiled grammars, buffers.
        await Traffic(url, seed=1).run(NUM_CLIENTS, 4)
        traffic = Traffic(url, seed=2)
        samples = []
        watching = asyncio.create_task(_watch(url, samples, duration_s / 60))
        await traffic.run(NUM_CLIENTS, duration_s)
        watching.cancel()
        after = await _wait_until_idle(url)

    outcome = traffic.outcome
    _report(outcome, samples, before, after, duration_s)
    assert outcome.faults == []
    assert len(outcome.done) == traffic.num_kinds
    assert not [line for line in printed if "Traceback" in line or '"level": "error"' in line]

    # Nothing is left: no row, request, thread or connection, and no array except cached prefixes.
    assert (after["reprise_rows"], after["reprise_waiting"]) == (0, 0)
    assert after["reprise_requests_in_progress"] == 1
    assert after["process_threads"] <= max(sample["process_threads"] for sample in samples)
    assert after["process_open_fds"] <= before["process_open_fds"] + 2
    kept_bytes = after["reprise_prefix_cache_bytes{target}"]
    left_bytes = after["reprise_mlx_active_bytes"] - before["reprise_mlx_active_bytes"]
    assert left_bytes <= HELD_OVER_COUNTED * kept_bytes + MEBIBYTE
    assert kept_bytes <= after["reprise_prefix_cache_budget_bytes{target}"]
    assert after["reprise_response_store_bytes"] <= after["reprise_response_store_budget_bytes"]

    # Nothing grows: the last third of the time takes no more than the second.
    second, last = (samples[len(samples) * k // 3 : len(samples) * (k + 1) // 3] for k in (1, 2))
    for name in ("process_resident_memory_bytes", "reprise_mlx_active_bytes"):
        assert _maximum(last, name) <= _maximum(second, name) + SLACK_BYTES, name
    for name in ("process_threads", "process_open_fds"):
        assert _maximum(last, name) <= _maximum(second, name) + 16, name
    ends = sum(value for name, value in after.items() if name.startswith("reprise_sequences_total"))
    assert ends > sum(outcome.done.values()) / 2
    assert not any(
        name in after for name in ("reprise_sequences_total{request}", "reprise_sequences_total{engine}")
    )
    assert after["reprise_failed_steps_total"] == 0
    assert after["reprise_stalls_total"] == 0


async def _scrape(url):
    """Return every metric by its name, with the values of its labels in braces."""
    async with httpx.AsyncClient() as http:
        text = (await http.get(f"{url}/metrics", timeout=60)).text
    return {
        sample.name + (f"{{{','.join(sample.labels.values())}}}" if sample.labels else ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def _watch(url, samples, every_s):
    while True:
        samples.append(await _scrape(url))
        await asyncio.sleep(every_s)


async def _wait_until_idle(url):
    """Wait until no request is running; return the metrics."""
    give_up_at = time.monotonic() + 30
    while True:
        now = await _scrape(url)
        is_idle = (
            now["reprise_rows"] == now["reprise_waiting"] == 0 == now["reprise_requests_in_progress"] - 1
        )
        if is_idle or time.monotonic() > give_up_at:
            # The prefixes of the last rows are cached, and memory is cleared, just after they end.
            await asyncio.sleep(1)
            return await _scrape(url)
        await asyncio.sleep(0.1)


def _maximum(samples, name):
    return max(sample[name] for sample in samples)


def _report(outcome, samples, before, after, duration_s):
    """Print the figures of the run."""
    print(
        f"\n{sum(outcome.done.values())} requests in {duration_s} s, {outcome.num_refused} got a Retry-After"
    )
    for name, count in sorted(outcome.done.items()):
        print(f"  {name} {count}, the slowest {outcome.longest_s[name]:.1f} s")
    print(*outcome.faults, sep="\n")
    for name in (
        "reprise_completion_tokens_total",
        "reprise_preemptions_total",
        "reprise_prefix_cache_hits_total{target}",
    ):
        print(f"{name} {after[name]:.0f}")
    thirds = [samples[len(samples) * k // 3 : len(samples) * (k + 1) // 3] for k in range(3)]
    for name in (
        "process_resident_memory_bytes",
        "reprise_mlx_active_bytes",
        "process_threads",
        "process_open_fds",
    ):
        scale = MEBIBYTE if name.endswith("_bytes") else 1
        peaks = ", ".join(f"{_maximum(third, name) / scale:.1f}" for third in thirds)
        print(
            f"{name}: {before[name] / scale:.1f} before, {peaks} by thirds, {after[name] / scale:.1f} after"
        )
