"""What quantised and dequantised weights mean for drafts is said where that depends on the device."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from reprise.config.settings import Settings
from reprise.engine.generating.setup import flat_costs, make_worker
from reprise.engine.model import loading
from reprise.engine.model.loading import describe_weights
from reprise.engine.pool.residency import Makers
from tests.engine.support import make_loaded

COST = "with quantised weights MLX's CPU build takes as long for a step of n tokens as for n steps"
SLOW = "each step takes many times as long as with float32"
PAYS = "; in bfloat16 they can: `reprise convert MODEL DIR --dequantize --dtype bfloat16`"


@pytest.mark.parametrize(
    ("config", "scales", "here", "elsewhere"),
    [
        ({}, "bfloat16", "", ""),
        ({"quantization": {"bits": 4}}, "float32", f"{COST}, so drafts cannot pay here{PAYS}", ""),
        (
            {"quantization_config": {"bits": 8}},
            "bfloat16",
            f"{COST}, so drafts cannot pay here; with scales of bfloat16 {SLOW}{PAYS}",
            "",
        ),
        (
            {"dequantised_from": "Q4_1"},
            "bfloat16",
            f"dequantised from Q4_1: {COST}, and no draft pays",
            "dequantised from Q4_1",
        ),
        ({"dequantised_from": 5}, "bfloat16", "", ""),
    ],
)
def test_what_weights_mean_for_drafts_depends_on_the_device(
    config: dict[str, Any], scales: str, here: str, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for gains, expected in ((False, here), (True, elsewhere)):
        monkeypatch.setattr(loading, "quantised_steps_gain", lambda gains=gains: gains)
        assert describe_weights(config, scales) == expected


@pytest.mark.parametrize(
    ("dtype", "drafts", "levels"),
    [
        ("4-bit", True, [logging.WARNING]),
        ("4-bit", False, []),
        ("bfloat16", True, []),
    ],
)
def test_the_log_warns_of_drafts_that_cannot_pay_and_the_banner_says_the_rest(
    dtype: str, drafts: bool, levels: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    loaded = make_loaded("llama")
    loaded.info = replace(loaded.info, dtype=dtype, weights_note="what they mean")
    makers = Makers(make_sources=(lambda _: None) if drafts else None, costs=flat_costs())
    with caplog.at_level(logging.INFO, "reprise.engine"):
        make_worker(loaded, None, Settings(memory_bytes=2**40), makers, lambda _stage, _share: None)
    said = [record.levelno for record in caplog.records if record.getMessage() == "llama: what they mean"]
    assert said == levels
