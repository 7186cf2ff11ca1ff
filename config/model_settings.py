"""Settings for the served models and the loading of their weights."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from reprise.config.setting import setting

BUNDLED_MODEL = Path(__file__).resolve().parent.parent / "demo_model"
BUNDLED_NAME = "reprise-demo"
_RESERVED = """
    add_generation_prompt chat_template continue_final_message conversation max_length messages padding
    processor_kwargs return_assistant_tokens_mask return_dict return_tensors sanitize_control_tokens tokenize
    tokenizer_kwargs tools truncation
"""
RESERVED_TEMPLATE_KEYS = frozenset(_RESERVED.split())
"""Variables of chat templates that the server sets itself."""
SPLIT = re.compile(r"pipeline|tensor|[0-9]+(,[0-9]+)*")


def display_name(source: str) -> str:
    """Return the name that people recognize: the folder's own name, or the name on the model hub.

    That of a GGUF file is the name of the folder that it is converted to.
    """
    path = Path(source)
    if path.is_dir():
        return path.resolve().name
    return path.name.removesuffix(".gguf") if path.is_file() or path.suffix == ".gguf" else source


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The values of the settings about models."""

    model: str | None = setting(
        None,
        "Model to serve: a folder in mlx-lm's format, a name on the model hub, a GGUF file, smollm2, a small "
        "model in a Python package, or reprise-demo, the bundled one. A GGUF file and smollm2 are converted "
        "once, into ~/.cache/reprise/converted.",
        unset="the bundled demo model",
        holds="path",
    )
    served_model_name: tuple[str, ...] = setting(
        (),
        "Additional name under which requests may ask for the model, or * for any name; repeat the flag for "
        "several.",
    )
    chat_template: str | None = setting(
        None,
        "File with a chat template, in place of the model's own.",
        unset="the model's own",
        holds="path",
    )
    chat_template_kwargs: Mapping[str, Any] | None = setting(
        None,
        'Variables for the chat template as JSON, such as {"preserve_thinking": true}. A request\'s own '
        "chat_template_kwargs override them one by one.",
        unset="none",
    )
    sampling_defaults: Literal["model", "openai"] = setting(
        "model",
        "Sampling of requests that leave it out, and limits of answers: model for what the model's "
        "generation_config.json says, openai for OpenAI's defaults (temperature 1, no limit).",
    )
    max_context_tokens: int | None = setting(
        None,
        "Maximum tokens of prompt and answer together. Lowers the model's own limit; if the model's "
        "configuration names none, sets it in place of 131072 (recurrent models) or 4096 (others).",
        at_least=2,
        unset="the model's own limit",
    )
    kv_bits: int | None = setting(
        None, "Quantize keys and values to this many bits, 4 or 8.", unset="not quantized"
    )
    trust_remote_code: bool = setting(
        False, "Allow a model that needs it to run the Python code in its folder."
    )
    adapter_path: str | None = setting(
        None,
        "Folder of a LoRA adapter in mlx-lm's format, which is added to the model.",
        holds="path",
    )
    models_dir: str | None = setting(
        None,
        "Folder of model folders, as FOLDER/NAME or FOLDER/OWNER/NAME. Requests may ask for these models and "
        "for those in the model hub's cache, which are then loaded.",
        holds="path",
    )
    embedding_model: str | None = setting(
        None,
        "Model that makes embeddings beside the served model: a folder, or a name in the model hub's cache.",
        holds="path",
    )
    rerank_model: str | None = setting(
        None,
        "Model that ranks documents beside the served model: a folder, or a name in the model hub's cache.",
        holds="path",
    )
    allow_load: bool | None = setting(
        None,
        "Whether requests may load, unload and pull models. With true also without --models-dir, for the "
        "models in the hub's cache.",
        unset="with --models-dir, if only this machine can connect",
    )
    idle_unload_s: float | None = setting(
        None,
        "Seconds without a request after which a model is unloaded, unless requests say otherwise "
        "(keep_alive). A model is also unloaded if another one needs its memory.",
        at_least=0,
        unset="never for that alone",
    )
    hosts: str | None = setting(
        None,
        "Start the model on several machines with mlx.launch: a host file, or names separated by commas.",
        unset="one machine",
        holds="path",
    )
    split: str = setting(
        "pipeline",
        "How a model on several machines is split: pipeline by its layers, evenly; tensor within each layer; "
        "numbers such as 20,12 by so many layers for each machine. Rank 0, the first, has the last layers.",
    )

    @property
    def split_kind(self) -> Literal["pipeline", "tensor"]:
        """Whether a model on several machines is split by its layers, or within each."""
        return "tensor" if self.split == "tensor" else "pipeline"

    @property
    def split_layers(self) -> tuple[int, ...]:
        """The layers of each machine, rank 0 first; empty to split them evenly, or within each layer."""
        return tuple(map(int, self.split.split(","))) if self.split[0].isdigit() else ()

    @property
    def serves_several(self) -> bool:
        """Whether requests may ask for other models than the one that the server starts with."""
        return self.models_dir is not None or bool(self.allow_load)

    @property
    def may_unload(self) -> bool:
        """Whether models may be loaded and unloaded while the server runs; otherwise it keeps one."""
        return self.serves_several or bool(self.beside) or self.idle_unload_s is not None

    @property
    def beside(self) -> dict[str, str]:
        """The embedding and ranking models to serve too: name -> source."""
        sources = (self.embedding_model, self.rerank_model)
        return {display_name(source): source for source in sources if source is not None}

    @property
    def model_name(self) -> str:
        """The first model's name in requests: its path within models_dir, if it is there."""
        if self.model in (None, BUNDLED_NAME):
            return BUNDLED_NAME
        folder = Path(self.model).resolve()
        if self.models_dir is not None and folder.is_dir():
            models = Path(self.models_dir).resolve()
            if models in folder.parents:
                return folder.relative_to(models).as_posix()
        return display_name(self.model)

    @property
    def model_source(self) -> str:
        """The folder or name of the model to load: the chosen one, or the bundled one."""
        return str(BUNDLED_MODEL) if self.model in (None, BUNDLED_NAME) else self.model
