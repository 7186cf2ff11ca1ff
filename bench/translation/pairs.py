"""What is compared: draft models, and the ways in which their drafts become the target's tokens."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.speculative.translation.translation import Strategy

STRATEGIES: tuple[Strategy, ...] = ("context", "naive", "shared", "none")
ACROSS: tuple[Strategy, ...] = ("context", "naive", "shared")
WITHIN: tuple[Strategy, ...] = ("none",)
"""What is measured unless asked otherwise, where the vocabularies differ and where they are one."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A draft model, by its folder and a short name, and a strategy of translation."""

    folder: Path
    name: str
    strategy: Strategy


def pairs_of(target: Path, folders: Sequence[Path], asked: Sequence[Strategy] | None) -> list[Pair]:
    """All that is measured, in order. asked: strategies; None for those that suit each draft model.

    Raises OSError and ValueError for a folder whose tokenizer cannot be read.
    """
    # It needs mlx-lm, which takes a while to load.
    from engine.model.mlx_lm_baseline import load_tokenizer

    own = load_tokenizer(target).fingerprint
    found = []
    for folder, name in zip(folders, _names(folders), strict=True):
        is_same = load_tokenizer(folder).fingerprint == own
        found += [Pair(folder, name, strategy) for strategy in asked or (WITHIN if is_same else ACROSS)]
    return found


def _names(folders: Sequence[Path]) -> list[str]:
    """The last parts of paths, or the whole paths where those are alike."""
    times = Counter(folder.resolve().name for folder in folders)
    return [folder.resolve().name if times[folder.resolve().name] == 1 else str(folder) for folder in folders]
