"""Read from the environment, as mlx.launch sets it, which rank this process is and where the others are."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from reprise.engine.interface.errors import ModelError


@dataclass(frozen=True)
class Place:
    """One process among those that share a model.

    rank: its number. hosts: the address of each rank, by which messages to people name the rank.
    port: where rank 0 listens for the others, at its own address. backend: how MLX connects the ranks.
    """

    rank: int
    hosts: tuple[str, ...]
    port: int
    backend: str = "ring"

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.hosts)

    def name(self, rank: int) -> str:
        """Return the name of a rank in messages to people."""
        return f"rank {rank} ({self.hosts[rank]})"


def read_place(environment: Mapping[str, str] = os.environ) -> Place | None:
    """Return this process's place; None if mlx.launch did not start it, or started no other.

    Raises ModelError if what mlx.launch says cannot be used.
    """
    if "MLX_RANK" not in environment:
        return None
    try:
        rank = int(environment["MLX_RANK"])
        if "MLX_HOSTFILE" in environment:
            place = _read_ring(rank, environment["MLX_HOSTFILE"])
        elif "MLX_JACCL_COORDINATOR" in environment:
            place = _read_jaccl(rank, environment["MLX_JACCL_COORDINATOR"], environment["MLX_IBV_DEVICES"])
        else:
            raise ModelError("mlx.launch was started with a backend other than ring and jaccl")
    except (OSError, ValueError, LookupError) as fault:
        raise ModelError(f"the host file of mlx.launch cannot be used: {fault}") from fault
    return place if place and place.size > 1 else None


def _read_ring(rank: int, file: str) -> Place | None:
    text = Path(file).read_text(encoding="utf-8").strip()
    if not text:
        return None
    ends = [[address.rsplit(":", 1) for address in node] for node in json.loads(text)]
    # mlx.launch counts the ports of the ring up, so that the next one is free.
    port = max(int(end[1]) for node in ends for end in node) + 1
    return Place(rank, tuple(node[0][0] for node in ends), port)


def _read_jaccl(rank: int, coordinator: str, devices: str) -> Place:
    host, port = coordinator.rsplit(":", 1)
    num_ranks = len(json.loads(Path(devices).read_text(encoding="utf-8")))
    # mlx.launch says no other address.
    others = (f"host {number} of the host file" for number in range(2, num_ranks + 1))
    return Place(rank, (host, *others), int(port) + 1, "jaccl")
