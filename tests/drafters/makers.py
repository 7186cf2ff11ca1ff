"""All drafters, by name. The contract suite tests every drafter that is listed here."""

from collections.abc import Callable

from reprise.drafters.base import Drafter
from reprise.drafters.ngram_mod.drafter import NgramModDrafter
from reprise.drafters.ngram_mod.table import NgramModTables
from reprise.drafters.prediction import PredictionDrafter
from reprise.drafters.suffix import SuffixDrafter

MakeDrafter = Callable[[], Drafter]

DRAFTERS: dict[str, MakeDrafter] = {
    "ngram-simple": lambda: SuffixDrafter(0, name="ngram-simple"),
    "ngram-mod": lambda: NgramModDrafter(NgramModTables("test", n=3, size=4096)),
    "prediction": PredictionDrafter,
    "suffix": lambda: SuffixDrafter(1024),
}

SHARING = {"ngram-mod", "suffix"}
"""Drafters that, by design, draft text of one sequence for another of the same tenant."""
