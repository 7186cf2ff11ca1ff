"""Write tiny random models with the bundled model's tokenizer into folders, and what they answer alone."""

import json
import shutil
from functools import cache
from pathlib import Path

import mlx.core as mx
import mlx_lm
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.model.loading import LoadedModel, LoadOptions, load_model
from tests.engine.support import config_of, make_model, oracle


def write_model(folder: Path, name: str = "llama", seed: int = 0, **changes: object) -> Path:
    """Write a model; another seed makes other weights. changes: entries of its configuration to replace."""
    folder.mkdir(parents=True)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BUNDLED_MODEL / file, folder)
    (folder / "config.json").write_text(json.dumps(config_of(name) | {"eos_token_id": 2} | changes))
    mx.random.seed(seed)
    model = make_model(name, **changes)
    arrays = dict(tree_flatten(model.parameters()))
    if seed:
        arrays = {key: array + 0.05 * mx.random.normal(array.shape) for key, array in arrays.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), arrays, metadata={"format": "mlx"})
    return folder


@cache
def _loaded(folder: Path) -> LoadedModel:
    return load_model(str(folder), folder.name, None)


def answer_of(folder: Path, asked: GenerationRequest) -> list[int]:
    """Return what the plain loop answers with a folder's model, which stays loaded."""
    return oracle(_loaded(folder), asked)


def write_models(folder: Path) -> Path:
    """Write the models one, org/two and three, and broken, whose weights are cut off."""
    write_model(folder / "one", "llama", 1)
    write_model(folder / "org" / "two", "qwen3", 2)
    write_model(folder / "three", "llama", 3)
    broken = write_model(folder / "broken", "llama", 4)
    weights = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    return folder


def text_of(folder: Path, asked: GenerationRequest) -> str:
    """Return the text of answer_of()."""
    loaded = _loaded(folder)
    tokens = answer_of(folder, asked)
    return loaded.tokenizer.decode([token for token in tokens if token not in loaded.tokenizer.eos_ids])


def write_adapter(folder: Path, base: Path, seed: int = 9) -> Path:
    """Write a random LoRA adapter for a model, in mlx-lm's format."""
    folder.mkdir(parents=True)
    parameters = {"rank": 2, "scale": 8.0, "dropout": 0.0}
    config = {"model": str(base), "num_layers": 1, "lora_parameters": parameters, "fine_tune_type": "lora"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    model, _ = mlx_lm.load(str(base))
    model.freeze()
    linear_to_lora_layers(model, 1, parameters)
    mx.random.seed(seed)
    arrays = {
        key: 0.3 * mx.random.normal(array.shape) for key, array in tree_flatten(model.trainable_parameters())
    }
    mx.save_safetensors(str(folder / "adapters.safetensors"), arrays)
    return folder


def answer_with(base: Path, adapter: Path, asked: GenerationRequest) -> list[int]:
    """Return what the plain loop answers with a model and an adapter."""
    return oracle(load_model(str(base), base.name, None, options=LoadOptions(adapter=str(adapter))), asked)
