"""The most used families share forward passes, roll drafts back exactly and use the prefix cache."""

import pytest

from reprise.engine.kv_cache.exact_widths import Tried, find_exact_shapes
from reprise.engine.kv_cache.probes import find_sharing, prefix_fault, rollback_fault
from reprise.engine.kv_cache.rows import Sharing
from tests.combinations import FAMILIES
from tests.tiny_models import TINY, make_model, tiny_config

BY_LAYER = ("gemma2", "deepseek_v3")
"""Layers that compute attention from their keys themselves, and so run once per group of rows."""

INEXACT = ("deepseek_v3",)
"""Latent attention computes one token by other formulas than several, which differ in the last digits."""


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_gets_everything(name: str) -> None:
    model = make_model(tiny_config(name))
    sharing = find_sharing(model)
    assert sharing == (Sharing.LAYERS if name in BY_LAYER else Sharing.GROUPS)
    assert rollback_fault(model, sharing=sharing) is None
    assert prefix_fault(model) is None
    exact = find_exact_shapes(Tried(model, sharing, None, TINY["vocab_size"], 512), [(3, 4)], lambda _: None)
    assert bool(exact.shapes()) == (name not in INEXACT)
