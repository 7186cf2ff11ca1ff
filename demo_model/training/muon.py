"""How weights are updated: Muon for matrices, and a step of several optimizers."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Muon(torch.optim.Optimizer):
    """Momentum with updates made orthogonal by Newton-Schulz steps (Jordan et al. 2024).

    The steps use dtype: float32, or bfloat16, as in torch's own Muon, where the CPU does not only emulate it.
    Updates are scaled to the usual size of AdamW's.
    """

    def __init__(
        self,
        matrices: list[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.05,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # noqa: ARG002
        """Update every matrix. Matrices of the same shape are multiplied together in one batch."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = {}
            for p in group["params"]:
                shapes.setdefault(p.shape, []).append(p)
            for shape, parameters in shapes.items():
                updates = []
                for p in parameters:
                    average = self.state[p].setdefault("memory", torch.zeros_like(p))
                    average.lerp_(p.grad, 1 - group["momentum"])
                    updates.append(p.grad.lerp(average, group["momentum"]))
                scale = 0.2 * max(shape) ** 0.5 * group["lr"]
                made = orthogonal(torch.stack(updates).to(self.dtype)).float()
                for p, update in zip(parameters, made, strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=scale)


def orthogonal(x: Tensor) -> Tensor:
    """Move matrices (n, rows, columns) towards the nearest ones with orthogonal rows or columns."""
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x


def descend(module: nn.Module, optimizers: Iterable[tuple[Any, float]], rate: float) -> None:
    """Clip a module's gradients, and let each optimizer take a step at that share of its peak rate."""
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    for optimizer, peak in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = peak * rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
