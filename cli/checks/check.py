"""The result of one check."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Check:
    """The finding of one check, for people. advice: the way out; empty if everything is well."""

    name: str
    level: Level
    found: str
    advice: str = ""
