"""What is checked before ranks compute together."""

import json
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from reprise.config.settings import Settings
from reprise.engine.distributed.model_parts import PartFacts, find_room, split_model
from reprise.engine.distributed.ranks import (
    Place,
    begin_group,
    compare,
    digest_files,
    find_facts,
    read_place,
    refuse_settings,
)
from reprise.engine.interface.errors import ModelError
from tests.end_to_end.seeing_folder import write_seeing
from tests.engine.embedding.encoder_folders import write_encoder
from tests.engine.model_folders import write_adapter
from tests.engine.support import make_model
from tests.tiny_models import write_random_model

PLACE = Place(0, ("10.0.0.1", "10.0.0.2"), 32325)


class Pair:
    """A group of two ranks, as far as its size and rank."""

    def size(self) -> int:
        return 2

    def rank(self) -> int:
        return 0


PAIR: mx.distributed.Group = Pair()  # type: ignore[assignment]


def part(room: int, rank_layers: int, kind: str = "KVCache") -> PartFacts:
    return PartFacts("CPU", None, {kind: rank_layers}, False, 100 << 20, room << 20)


def test_one_machine_imports_nothing_of_this() -> None:
    script = (
        "import sys, reprise.engine.engine, reprise.server.run, reprise.cli.serve; "
        "print([name for name in sys.modules if name.startswith('reprise.engine.distributed')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_place_is_read_from_what_mlx_launch_sets(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(json.dumps([["10.0.0.1:32323"], ["10.0.0.2:32324"]]))
    assert read_place({"MLX_RANK": "0", "MLX_HOSTFILE": str(file)}) == PLACE
    assert read_place({}) is None
    with pytest.raises(ModelError, match="backend other than ring and jaccl"):
        read_place({"MLX_RANK": "0"})


def test_the_place_is_read_from_what_mlx_launch_sets_for_jaccl(tmp_path: Path) -> None:
    file = tmp_path / "devices"
    file.write_text(json.dumps([[None, "rdma_en2"], ["rdma_en2", None]]))
    found = {"MLX_RANK": "1", "MLX_JACCL_COORDINATOR": "10.0.0.1:32323", "MLX_IBV_DEVICES": str(file)}
    place = read_place(found)
    assert place == Place(1, ("10.0.0.1", "host 2 of the host file"), 32324, "jaccl")
    with pytest.raises(ModelError, match="cannot be used: 'MLX_IBV_DEVICES'"):
        read_place({"MLX_RANK": "1", "MLX_JACCL_COORDINATOR": "10.0.0.1:32323"})


def test_machines_that_mlx_cannot_connect_are_refused() -> None:
    # No devices are given.
    with pytest.raises(ModelError, match="MLX cannot connect the machines by jaccl"):
        begin_group(Place(0, ("10.0.0.1", "host 2 of the host file"), 32324, "jaccl"))


@pytest.mark.parametrize(
    ("name", "split", "layers", "message"),
    [
        ("gemma3_text", "pipeline", None, "cannot split .* by layers"),
        ("gemma3_text", "tensor", None, "cannot split .* within its layers"),
        ("llama", "pipeline", None, "by layers .*--split tensor works"),
        ("qwen2", "pipeline", [1, 9], "--split 1,9: .* give each of them at least one"),
    ],
)
def test_a_model_that_cannot_be_split_so_is_refused(
    name: str, split: str, layers: list[int] | None, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        split_model(make_model(name), PAIR, split, layers, name)  # type: ignore[arg-type]


def test_sizes_that_do_not_divide_are_refused() -> None:
    model = make_model("qwen2", num_attention_heads=3, num_key_value_heads=3)
    with pytest.raises(ModelError, match="its num_attention_heads is 3"):
        split_model(model, PAIR, "tensor", None, "qwen2")


def test_another_version_or_other_weights_are_named(tmp_path: Path) -> None:
    ours = {"version of MLX": "1", "model": "a"}
    assert compare(ours, ours, "rank 1 (b)") is None
    assert compare(ours, ours | {"version of MLX": "2"}, "rank 1 (b)") == (
        "rank 1 (b) has another version of MLX than rank 0: 2, not 1"
    )
    first = write_random_model("qwen2", tmp_path / "one")
    before = digest_files(first)
    weights = bytearray((first / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (first / "model.safetensors").write_bytes(weights)
    other = compare({"model": before}, {"model": digest_files(first)}, "rank 1 (b)")
    assert other == "rank 1 (b) has other files of the model than rank 0; copy the same folder to both"


def test_the_smallest_room_counts_by_the_layers_of_each_rank() -> None:
    assert find_room(PLACE, [part(900, 20), part(300, 10)]) == 600 << 20
    assert find_room(PLACE, [part(500, 20), part(300, 10)]) == 500 << 20
    with pytest.raises(ModelError, match=r"rank 1 \(10.0.0.2\) has too little memory.* 10 MiB more"):
        find_room(PLACE, [part(500, 20), part(-10, 10)])
    with pytest.raises(ModelError, match="choose other layers \\(--split\\)"):
        find_room(PLACE, [part(500, 20), part(300, 10, "ArraysCache")])


@pytest.mark.parametrize("settings", [{"wire_weights": True}])
def test_settings_that_do_not_work_on_several_machines_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ModelError, match="with a model on several machines"):
        refuse_settings(Settings(**settings))  # type: ignore[arg-type]


def test_an_adapter_is_refused_within_layers_and_compared_otherwise(tmp_path: Path) -> None:
    base = write_random_model("qwen2", tmp_path / "model")
    one, other = (write_adapter(tmp_path / name, base, seed) for name, seed in (("one", 1), ("other", 2)))
    with pytest.raises(ModelError, match=r"--adapter-path: .*use --split pipeline"):
        refuse_settings(Settings(adapter_path=str(one), split="tensor"))
    ours, theirs = (find_facts(Settings(model=str(base), adapter_path=str(path))) for path in (one, other))
    assert "rank 1 (b) has another adapter" in str(compare(ours, theirs, "rank 1 (b)"))
    assert compare(ours, ours, "rank 1 (b)") is None


def test_a_rank_ends_though_nobody_reads_what_it_prints() -> None:
    script = """
import logging, os, sys, threading
from reprise.engine.distributed.rank_0 import leave
reader, writer = os.pipe()
os.dup2(writer, sys.stderr.fileno())
logging.basicConfig()
threading.Thread(target=logging.error, args=("x" * 2**21,), daemon=True).start()
# Its write fills the pipe, and it keeps the lock.
lock = logging.getLogger().handlers[0].lock
while lock.acquire(blocking=False):
    lock.release()
leave(3)
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert done.returncode == 3


def test_a_model_that_sees_is_refused_unless_it_is_to_read_text(tmp_path: Path) -> None:
    model = str(write_seeing(tmp_path / "seeing", "mistral3"))
    with pytest.raises(ModelError, match=r"seeing sees images, .* start with --max-images 0 "):
        refuse_settings(Settings(model=model))
    refuse_settings(Settings(model=model, max_images=0))
    (tmp_path / "seeing" / "preprocessor_config.json").unlink()
    # On one machine it sees nothing either.
    refuse_settings(Settings(model=model))


def test_a_rank_ends_though_another_takes_nothing_that_it_is_told() -> None:
    script = """
import socket, threading
from reprise.config.settings import Settings
from reprise.engine.distributed.ranks import Channel
from reprise.engine.distributed.ranks import Peers
from reprise.engine.distributed.rank_0 import Ranks, leave
from reprise.engine.distributed.ranks import Place
server = socket.create_server(("127.0.0.1", 0))
channel = Channel(socket.create_connection(server.getsockname()))
other, _ = server.accept()
threading.Thread(target=channel.send, args=("x" * 2**24,), daemon=True).start()
other.recv(1)
place = Place(0, ("10.0.0.1", "10.0.0.2"), 32325)
ranks = Ranks(place, Settings())
ranks._peers = Peers(place, [channel], 60)
leave(ranks.release(1))
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert done.returncode == 3


def test_a_model_that_generates_nothing_is_for_one_machine(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "embeds")
    with pytest.raises(ModelError, match="embeds generates no text; serve it on one machine"):
        refuse_settings(Settings(model=str(folder)))
