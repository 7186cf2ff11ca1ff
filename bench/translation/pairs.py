"""The pairs to compare: draft models, and strategies that translate their drafts to the target's tokens."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.speculative.translation.translation import Strategy

STRATEGIES: tuple[Strategy, ...] = ("context", "naive", "shared", "none")
ACROSS: tuple[Strategy, ...] = ("context", "naive", "shared")
WITHIN: tuple[Strategy, ...] = ("none",)
"""The default strategies for draft models with another vocabulary, and with the same one."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A draft model, with its folder and a short name, and a translation strategy."""

    folder: Path
    name: str
    strategy: Strategy


def pairs_of(target: Path, folders: Sequence[Path], requested: Sequence[Strategy] | None) -> list[Pair]:
    """Return all pairs to measure, in order. requested: strategies; None: the defaults for each draft model.

    Raises OSError and ValueError for a folder whose tokenizer cannot be read.
    """
    # Imported here, because it loads mlx-lm, which takes a while.
    from engine.model.loading import load_tokenizer

    target_vocabulary = load_tokenizer(target).fingerprint
    found = []
    for folder, name in zip(folders, _names(folders), strict=True):
        is_same = load_tokenizer(folder).fingerprint == target_vocabulary
        found += [Pair(folder, name, strategy) for strategy in requested or (WITHIN if is_same else ACROSS)]
    return found


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the last parts of the paths; whole paths where the last parts are equal."""
    times = Counter(folder.resolve().name for folder in folders)
    return [folder.resolve().name if times[folder.resolve().name] == 1 else str(folder) for folder in folders]
