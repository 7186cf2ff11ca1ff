"""Read from the environment, as mlx.launch sets it, which rank this process is and where the others are."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.model.loading import ModelError


@dataclass(frozen=True)
class Place:
    """One process among those that share a model.

    rank: its number. hosts: the address of each rank, by which messages name it.
    port: where rank 0 listens for the others, at its own address.
    """

    rank: int
    hosts: tuple[str, ...]
    port: int

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.hosts)

    def name(self, rank: int) -> str:
        """Return how messages name a rank."""
        return f"rank {rank} ({self.hosts[rank]})"


def read_place(environment: Mapping[str, str] = os.environ) -> Place | None:
    """Return this process's place; None if it was not started by mlx.launch, or alone.

    Raises ModelError if the host file cannot be used.
    """
    if "MLX_RANK" not in environment:
        return None
    try:
        rank = int(environment["MLX_RANK"])
        if "MLX_HOSTFILE" not in environment:
            raise ModelError("mlx.launch was started with a backend other than ring, which is not supported")
        text = Path(environment["MLX_HOSTFILE"]).read_text(encoding="utf-8").strip()
        if not text:
            return None
        ends = [[address.rsplit(":", 1) for address in node] for node in json.loads(text)]
        hosts = tuple(node[0][0] for node in ends)
        # mlx.launch counts the ports of the ring up, so that the next one is free.
        port = max(int(end[1]) for node in ends for end in node) + 1
    except (OSError, ValueError, LookupError) as fault:
        raise ModelError(f"the host file of mlx.launch cannot be used: {fault}") from fault
    return Place(rank, hosts, port) if len(hosts) > 1 else None
