"""Folders of real models, as mlx-lm loads them."""

from pathlib import Path

import pytest

from tests.real_weights.packages import GEMMA3, SMOLLM2, folder_of


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """SmolLM2-135M-Instruct in bfloat16: 49,152 tokens, a context of 8,192, a chat template."""
    return folder_of(SMOLLM2)


@pytest.fixture(scope="session")
def gemma3_folder() -> Path:
    """Gemma 3 270M in bfloat16: 262,144 tokens, windows of 512 tokens, no chat template."""
    return folder_of(GEMMA3)
