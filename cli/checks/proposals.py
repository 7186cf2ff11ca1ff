"""Propose a model that fits into the memory of this machine, from a list that is kept here."""

from dataclasses import dataclass

from reprise.cli.checks.check import Check
from reprise.cli.units import format_bytes


@dataclass(frozen=True)
class Proposal:
    """A model to begin with. name: as `reprise serve` takes it. weight_bytes: about its weights' size."""

    name: str
    weight_bytes: int
    good_for: str


PROPOSALS = (
    Proposal("smollm2", 110 << 20, "trying chats; it errs often"),
    Proposal("mlx-community/Qwen3-0.6B-4bit", 320 << 20, "short answers and small edits"),
    Proposal("mlx-community/Qwen3-1.7B-4bit", 923 << 20, "short answers and small edits"),
    Proposal("mlx-community/Qwen3-4B-4bit", 2158 << 20, "chats and edits"),
    Proposal("mlx-community/Qwen3-8B-4bit", 4394 << 20, "chats, edits and simple agents"),
    Proposal("mlx-community/Qwen3-14B-4bit", 7923 << 20, "chats, edits and agents"),
    Proposal(
        "mlx-community/Qwen3-30B-A3B-4bit", 16379 << 20, "agents; it computes with 3B parameters at a time"
    ),
    Proposal("mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit", 42743 << 20, "agents with long contexts"),
)
"""From small to large. Sizes are calculated, as in docs/models.md; none was downloaded for this list."""

SHARE = 0.6
"""Share of the memory for models and caches that weights may take: an agent's context takes the rest."""


def propose(usable_bytes: int, has_gpu: bool) -> Proposal:
    """Return the largest model of the list that fits into the memory for models and caches.

    Without a GPU, return the smallest model: MLX then computes slowly with the hub's 4-bit weights, whose
    scales are bfloat16, and the smallest model is converted on this machine, with other scales.
    """
    fitting = [one for one in PROPOSALS if one.weight_bytes <= SHARE * usable_bytes]
    return fitting[-1] if fitting and has_gpu else PROPOSALS[0]


def check_proposal(usable_bytes: int, has_gpu: bool) -> Check:
    """Propose a model to begin with on this machine."""
    one = propose(usable_bytes, has_gpu)
    found = f"{one.name} fits: about {format_bytes(one.weight_bytes)} of weights, for {one.good_for}"
    return Check("a model for this machine", "ok", found, f"reprise serve {one.name}")
