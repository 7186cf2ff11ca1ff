"""Load a model that embeds texts or ranks documents, on the thread that owns MLX."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.nn.layers.quantized import quantize

from reprise.config.model_settings import display_name
from reprise.config.settings import Settings
from reprise.engine.embedding.architecture import Config, complete
from reprise.engine.embedding.encoder import (
    DECODERS,
    JUDGE,
    Decoder,
    Encoder,
    describe_judge,
    find_answers,
    rename,
)
from reprise.engine.embedding.passes import Stage, load_dense, make_vector
from reprise.engine.interface.embeddings import EmbeddingInfo, Recipe
from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.models import ModelInfo, Progress
from reprise.engine.model.device import wire_weights
from reprise.engine.model.files.folder_reader import read_json
from reprise.engine.model.files.model_folder import (
    ENCODERS,
    GEMMA,
    check_loadable,
    find_longest,
    find_purpose,
    read_recipe,
)
from reprise.engine.model.loading import LoadedModel, describe, load_model, load_tokenizer, read_all
from reprise.engine.text.encoding import copy_backend, find_ids
from reprise.engine.text.tokenizer import Tokenizer
from reprise.engine.vision.weights import Weights, read_arrays

_Loaded = tuple[Encoder | Decoder, Config, Tokenizer, ModelInfo]


@dataclass
class EmbeddingModel:
    """A loaded model that embeds or ranks. recipe, dense: turn its states into vectors; see make_vector()."""

    body: Encoder | Decoder
    config: Config
    recipe: Recipe
    dense: Sequence[Stage]
    tokenizer: Tokenizer
    info: ModelInfo

    def finish(self, states: mx.array, first_pooled: int = 0, dimensions: int | None = None) -> mx.array:
        """Return the vector of a text, see make_vector(), or the score of a pair, (1,) in [0, 1].

        states: (tokens, size) after the last layer.
        """
        if self.info.purpose == "rerank":
            return mx.sigmoid(self.body.rate(states).astype(mx.float32))
        return make_vector(self.recipe, self.dense, states, first_pooled, dimensions)


def load_embedding_model(settings: Settings, name: str, progress: Progress | None = None) -> EmbeddingModel:
    """Load the model that the settings name. name: how the API shows it. Raises ModelError."""
    folder = Path(settings.model_source)
    try:
        check_loadable(folder)
        config = read_json(folder / "config.json")
        recipe = read_recipe(folder, config)
        if config.get("model_type") in ENCODERS:
            body, config, tokenizer, info = _load_encoder(folder, config, name, progress)
        else:
            ranks = name == display_name(settings.rerank_model or "")
            ranks = ranks or find_purpose(folder, config) == "rerank"
            loaded = _load_decoder(folder, config, name, progress, ranks=ranks)
            tokenizer = loaded.tokenizer
            answers = find_answers(tokenizer, recipe.answers) if ranks else None
            body = Decoder(loaded.model, config, find_longest(config, recipe), answers)
            info = replace(loaded.info, purpose="rerank" if ranks else "embed")
        dense, num_dimensions = load_dense(recipe.dense, config["hidden_size"])
        ranks = info.purpose == "rerank"
        if isinstance(body, Decoder) and ranks:
            embedding = describe_judge(tokenizer)
        else:
            embedding = _describe(recipe, config, 1 if ranks else num_dimensions, tokenizer, ranks=ranks)
    # Weights may raise anything.
    except Exception as fault:
        raise ModelError(f"cannot load the model {settings.model_source}: {fault}") from fault
    if settings.wire_weights:
        wire_weights()
    limits = find_longest(config, recipe), settings.max_context_tokens
    longest = min([limit for limit in limits if limit], default=info.context_tokens)
    info = replace(info, context_tokens=longest, embedding=embedding)
    return EmbeddingModel(body, config, recipe, dense, tokenizer, info)


def _load_encoder(folder: Path, given: Config, name: str, progress: Progress | None) -> _Loaded:
    start, purpose, config = time.perf_counter(), find_purpose(folder, given), complete(given)
    num_classes = len(config["id2label"]) if "id2label" in config else config.get("num_labels", 2)
    if purpose == "rerank" and num_classes != 1:
        raise ModelError("it sorts texts into several classes; one that ranks has one")
    encoder = Encoder(config, ranks=purpose == "rerank")
    _load_weights(encoder, folder, config, progress)
    info = describe(encoder, config, name, config["vocab_size"], None, time.perf_counter() - start)
    return encoder, config, load_tokenizer(folder), replace(info, purpose=purpose)


def _load_decoder(
    folder: Path, config: Config, name: str, progress: Progress | None, *, ranks: bool
) -> LoadedModel:
    kind = config.get("model_type")
    if kind not in DECODERS:
        raise ModelError(f"{kind} models cannot embed here yet")
    if ranks and kind != JUDGE:
        raise ModelError(f"it generates text; of models that do, only {JUDGE} models rank (Qwen3-Reranker)")
    return load_model(str(folder), name, None, progress, split=_widen if kind == GEMMA else None)


def _widen(model: Any) -> None:
    """Compute EmbeddingGemma in float32: in float16 it overflows, and bfloat16 is coarse."""
    model.set_dtype(mx.float32)


def _load_weights(encoder: Encoder, folder: Path, config: Config, progress: Progress | None) -> None:
    # Eight bits of fraction are too few for BERT: cosines differ in the fourth digit.
    exact = {
        name: array.astype(mx.float32) if array.dtype == mx.bfloat16 else array
        for name, array in rename(read_arrays(folder)).items()
    }
    if config.get("quantization"):

        def find_packing(path: str, part: Any) -> dict[str, Any] | bool:
            if f"{path}.scales" not in exact:
                return False
            size, bits, mode = Weights(exact).packing(path, part.weight.shape[-1])
            return {"group_size": size, "bits": bits, "mode": mode}

        quantize(encoder, class_predicate=find_packing)
    encoder.load_weights(list(exact.items()))
    encoder.eval()
    read_all(encoder, progress)


def _describe(
    recipe: Recipe, config: Config, dimensions: int, tokenizer: Tokenizer, *, ranks: bool
) -> EmbeddingInfo:
    """Describe how vectors are made, and find the special tokens around texts and pairs."""
    sample = tokenizer.encode_answer("a")
    pair = copy_backend(tokenizer.backend).encode("a", "a")
    first = _find(pair.ids, sample, 0)
    second = _find(pair.ids, sample, first + len(sample))
    alone = tokenizer.encode("a")
    at = _find(alone, sample, 0)
    before, after = alone[:at], alone[at + len(sample) :]
    if ranks:
        before, after = pair.ids[:first], pair.ids[second + len(sample) :]
    if recipe.pooling == "last" and not after:
        # It was trained to say there what the text means.
        ends = config.get("eos_token_id")
        after = [ends] if isinstance(ends, int) else list(ends or ())[:1]
    return EmbeddingInfo(
        dimensions=dimensions,
        recipe=Recipe("cls") if ranks else recipe,
        before=tuple(before),
        between=tuple(pair.ids[first + len(sample) : second]),
        after=tuple(after),
        second_type=min(int(pair.type_ids[second]), max(0, config.get("type_vocab_size", 1) - 1)),
    )


def _find(ids: list[int], part: list[int], start: int) -> int:
    if (at := find_ids(ids, part, start)) is None:
        raise ModelError("its tokenizer encodes a text differently beside another")
    return at
