"""`reprise bench images`: ask servers about images, by size and several at once, and compare.

Show a random Qwen3-VL model, which is made for it, images of random pixels, each of them once: one at a time
by size, for answers of one token, which cost the tower and the prefill; then as many as --streams, one after
the other and at once. Each round has new images, the same ones for all, and begins with a different server.
--mlx-vlm also starts that server. Ratios are to the first server. Exit status 1 if anything failed.
"""

import argparse
import base64
import io
import random
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import document, options, outputs
from bench.architectures.seeing_model import write_seeing_model
from bench.experiment import Row
from bench.options import Flag
from bench.serving import servers, traffic
from bench.serving.client import Server
from bench.serving.traffic import Batch
from bench.statistics import ratio
from bench.tables import Column
from bench.workloads import Turn
from bench.workloads.chats import user

MLX_VLM = "mlx-vlm"

FLAGS = (
    *servers.named(),
    Flag("--mlx-vlm", str, "PYTHON", None, "Also start mlx-vlm's server, with a Python that has it."),
    Flag("--sizes", options.levels, "N,...", (256, 512, 1024), "Pixels of a side of an image."),
    Flag("--streams", options.count, "N", 8, "Images that are shown at once."),
    Flag("--size", options.count, "N", 256, "Pixels of a side of those."),
    *options.shared(max_tokens=32, rounds=3, seed=1, **options.OUTPUTS),
)  # fmt: skip

COLUMNS = [*traffic.COLUMNS, Column("gain", "to one\nby one", "2")]
NOTES = (
    *traffic.NOTES,
    "pixels: one token about one image, so tokens/s are images/s. to one by one: the same peer's tokens/s.",
)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print. Return 1 if a request failed, 2 if the arguments cannot be combined."""
    servers.check(arguments, [MLX_VLM])
    result = document.new_document(arguments)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as children:
        model = write_seeing_model(Path(folder) / "seeing")
        peers = servers.addresses(arguments, model, children, {})
        if python := arguments.mlx_vlm:
            command = [python, "-m", "mlx_vlm.server", "--model", str(model)]
            url = children.enter_context(servers.run_server(MLX_VLM, command))
            peers[MLX_VLM] = servers.Address(url, str(model), {})
        rows = measure(peers, arguments)
    found, remarks = with_gains(traffic.figures_of(rows, "workload", "streams")), traffic.remarks(rows)
    result["images"] = {"rows": found, "notes": remarks}
    title = "The same images on each peer"
    outputs.report(arguments, result, found, outputs.Table(COLUMNS, title, [*NOTES, *remarks], width=150))
    return int(any(row["error"] for row in rows))


def measure(peers: dict[str, servers.Address], arguments: argparse.Namespace) -> list[Row]:
    """Return the rows of all answers: by size, then several images one by one and at once."""
    rng, rounds, count = random.Random(arguments.seed), range(arguments.rounds + 1), arguments.streams

    def ask(max_tokens: int, streams: int, batches: Sequence[Batch]) -> list[Row]:
        clients = {
            name: Server(url, model, max_tokens, headers=headers).ask
            for name, (url, model, headers) in peers.items()
        }
        return traffic.ask_all(clients, batches, streams)

    def shown(side: int, number: int) -> list[Turn]:
        return [make_turn(side, rng) for _ in range(number)]

    by_size = [Batch(at, f"{side} pixels", shown(side, 1)) for side in arguments.sizes for at in rounds]
    rows = ask(1, 1, by_size)
    for streams in dict.fromkeys((1, count)):
        batches = [Batch(at, f"{count} images", shown(arguments.size, count)) for at in rounds]
        rows += ask(arguments.max_tokens, streams, batches)
    return rows


def make_turn(side: int, rng: random.Random) -> Turn:
    """Return a question about a square image of random pixels, in blocks of 8 so that it is small."""
    # Of an extra, without which the other benchmarks work.
    from PIL import Image

    blocks = (max(1, side // 8),) * 2
    image = Image.frombytes("RGB", blocks, rng.randbytes(3 * blocks[0] ** 2)).resize((side, side), 0)
    file = io.BytesIO()
    image.save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    text = {"type": "text", "text": "What is on this picture?"}
    return Turn((user("") | {"content": [{"type": "image_url", "image_url": {"url": url}}, text]},), None)


def with_gains(rows: Sequence[Row]) -> list[Row]:
    """Return the rows; those of several streams with their speed as a multiple of the peer's with one."""
    single = {(row["workload"], row["name"]): row["tokens_per_s"] for row in rows if row["streams"] == 1}
    return [
        {**row, "gain": ratio(row["tokens_per_s"], single[row["workload"], row["name"]])}
        if row["streams"] > 1
        else {**row}
        for row in rows
    ]
