"""The bundled model takes an agent's first prompt, and starts with less where memory holds less."""

import json
import logging

import pytest

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings
from reprise.engine.kv_cache.rows import Sharing
from reprise.engine.memory.budget import make_memory_budget
from reprise.engine.model.loading import make_loader

AGENT_TOKENS = 36_305
"""Tokens of Claude Code's first prompt, in the bundled model's vocabulary."""


def test_it_takes_more_than_an_agent_s_first_prompt() -> None:
    loaded = make_loader(Settings(keeps_costs=False))(None)
    assert loaded.info.context_tokens == 65_536 > AGENT_TOKENS
    limit = json.loads((BUNDLED_MODEL / "tokenizer_config.json").read_text())["model_max_length"]
    assert limit == loaded.info.context_tokens


def test_with_little_memory_it_starts_with_a_shorter_context(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    loaded = make_loader(Settings(keeps_costs=False))(None)
    budget = make_memory_budget(loaded, Settings(memory_bytes=256 * 2**20), Sharing.GROUPS, None)
    assert 16_384 < loaded.info.context_tokens < 65_536
    assert budget.bytes_alone(loaded.info.context_tokens) <= budget.room_bytes
    assert "the model's own limit is 65536" in caplog.text
