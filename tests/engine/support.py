"""Tiny random models that run mlx-lm's own code, and the plain loop that the engine must equal."""

import functools
import importlib
import queue
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_tokenizer

from config.settings import BUNDLED_MODEL
from engine.engine import Engine
from engine.model.loading import LoadedModel, describe
from engine.model.tokenizer import Tokenizer
from engine.request import Delta, Event, Failed, Finished, GenerationRequest, Sampling
from engine.sampling.sampler import noise_key

VOCAB_SIZE = 4096
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": SMALL | {"model_type": "llama"},
    "qwen3": SMALL | {"model_type": "qwen3"},
    "gemma3_text": SMALL
    | {"model_type": "gemma3_text", "sliding_window": 16, "sliding_window_pattern": 2}
    | {"query_pre_attn_scalar": 8},
    "mamba2": {
        "model_type": "mamba2", "num_heads": 4, "head_dim": 16, "vocab_size": VOCAB_SIZE, "hidden_size": 32,
        "intermediate_size": 64, "state_size": 8, "num_hidden_layers": 2, "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4, "n_groups": 1, "use_bias": False, "use_conv_bias": True,
        "tie_word_embeddings": True,
        "time_step_limit": (0.001, 100.0), "time_step_rank": "auto", "max_position_embeddings": 1024,
    },
    # Sliding windows with attention sinks, and a mixture of experts.
    "gpt_oss": SMALL | {
        "model_type": "gpt_oss", "sliding_window": 16, "num_local_experts": 4, "num_experts_per_tok": 2,
    },
    # Recurrent layers (gated delta rule), full attention, and a mixture of experts.
    "qwen3_next": SMALL | {
        "model_type": "qwen3_next", "full_attention_interval": 2, "partial_rotary_factor": 0.5,
        "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "num_experts": 4, "num_experts_per_tok": 2,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32, "norm_topk_prob": True,
    },
    # Short convolutions and full attention.
    "lfm2": SMALL | {
        "model_type": "lfm2", "norm_eps": 1e-5, "conv_bias": False, "conv_L_cache": 3, "block_dim": 32,
        "block_ff_dim": 64, "block_multiple_of": 8, "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False, "full_attn_idxs": [1],
    },
    # Mamba 2 and full attention in a list of caches per layer.
    "falcon_h1": SMALL | {
        "model_type": "falcon_h1", "mamba_d_ssm": 64, "mamba_d_state": 8, "mamba_n_heads": 4,
        "mamba_d_head": 16, "mamba_d_conv": 4, "mamba_n_groups": 1,
    },
    # Latent attention (MLA), whose keys are values too, and a mixture of experts.
    "deepseek_v3": SMALL | {
        "model_type": "deepseek_v3", "moe_intermediate_size": 32, "n_shared_experts": 1,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "kv_lora_rank": 16, "q_lora_rank": 16,
        "qk_rope_head_dim": 8, "v_head_dim": 8, "qk_nope_head_dim": 8, "first_k_dense_replace": 1,
    },
    # Chunked attention, and full attention in every fourth layer.
    "llama4": {
        "model_type": "llama4", "vocab_size": VOCAB_SIZE, "text_config": SMALL | {
            "model_type": "llama4_text", "attention_chunk_size": 16, "attention_bias": False,
            "interleave_moe_layer_step": 4, "intermediate_size_mlp": 64, "num_experts_per_tok": 1,
            "num_hidden_layers": 4, "num_local_experts": 2, "rope_scaling": None, "use_qk_norm": True,
        },
    },
    # Recurrent state with a sliding window, and with full attention, in a list of caches per layer.
    "baichuan_m1": SMALL | {
        "model_type": "baichuan_m1", "sliding_window": 16, "sliding_window_layers": [0], "conv_window": 2,
    },
}  # fmt: skip


def make_model(name: str, dtype: mx.Dtype = mx.float32, **changes: Any) -> Any:
    """Make a random model. Its weights are large enough for the logits of its choices to be far apart.

    name: the architecture, a key of CONFIGS. changes: entries of its configuration to replace.
    """
    module = importlib.import_module(f"mlx_lm.models.{name}")
    mx.random.seed(7)
    model = module.Model(module.ModelArgs.from_dict(CONFIGS[name] | changes))
    weights = [
        (key, (mx.random.normal(a.shape) * 0.3 if a.ndim > 1 else a).astype(dtype))
        for key, a in tree_flatten(model.parameters())
    ]
    model.load_weights(weights)
    model.eval()
    mx.eval(model.parameters())
    return model


@functools.cache
def make_tokenizer() -> Tokenizer:
    """Load the bundled model's tokenizer."""
    return Tokenizer(load_tokenizer(Path(BUNDLED_MODEL)), VOCAB_SIZE)


def make_loaded(name: str, wrap: Callable[[Any], Any] = lambda model: model) -> LoadedModel:
    """Make a random model with the bundled tokenizer. wrap: may replace the model by a wrapper."""
    model = make_model(name)
    info = describe(model, CONFIGS[name], name, VOCAB_SIZE, None, 0.0)
    return LoadedModel(wrap(model), make_tokenizer(), info)


class Answer:
    """A sink that collects one sequence's events, from any thread, and can wait for the terminal one."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._last: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.on_delta: Callable[[], None] = lambda: None

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if event.is_terminal:
            self._last.put(event)
        else:
            self.on_delta()

    def end(self) -> Event:
        """Wait for the terminal event. Fails if there was more than one, or any event after it."""
        last = self._last.get(timeout=180)
        assert [e.is_terminal for e in self.events].count(True) == 1
        assert self.events[-1] is last
        return last

    def finished(self) -> Finished:
        """Wait for the terminal event, which must be Finished."""
        last = self.end()
        assert isinstance(last, Finished), last
        return last

    def failed(self) -> Failed:
        """Wait for the terminal event, which must be Failed."""
        last = self.end()
        assert isinstance(last, Failed), last
        return last

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(e.text for e in self.events if isinstance(e, Delta))


def ask(engine: Engine, request: GenerationRequest) -> Answer:
    """Submit a request; return the Answer that collects its events."""
    answer = Answer()
    engine.submit(request, answer)
    return answer


def request(
    prompt: Sequence[int], max_tokens: int = 24, stop: tuple[str, ...] = (), name: str = "r", **sampling: Any
) -> GenerationRequest:
    """Make a request, greedy unless sampling says otherwise. name: its id."""
    settings = {"seed": 1, "temperature": 0.0} | sampling
    return GenerationRequest(name, tuple(prompt), max_tokens, Sampling(**settings), stop)


def oracle(loaded: LoadedModel, asked: GenerationRequest) -> list[int]:
    """Return the answer's tokens by the plain, unbatched, unpipelined loop that the engine must equal.

    It shares only noise_key() with the engine, and has no filters, penalties or stop strings.
    """
    tokens, caches = list(asked.prompt), make_prompt_cache(loaded.model)
    fed = tokens
    while len(tokens) - len(asked.prompt) < asked.max_tokens:
        logits = loaded.model(mx.array(fed)[None], cache=caches)[0, -1].astype(mx.float32)
        if asked.sampling.temperature > 0:
            key = mx.array(noise_key(asked.sampling.seed, len(tokens)), mx.uint32)
            logits = logits / asked.sampling.temperature + mx.random.gumbel(logits.shape, key=key)
        fed = [int(mx.argmax(logits).item())]
        tokens += fed
        if fed[0] in loaded.tokenizer.eos_ids:
            break
    return tokens[len(asked.prompt) :]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true. Fails after a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true within a minute"
        time.sleep(0.02)


def prompt_of(length: int, start: int = 0) -> list[int]:
    """Make a prompt of that length; another start gives other token ids."""
    return [5 + (start * 7919 + i * i * 31 + i * 17) % (VOCAB_SIZE - 5) for i in range(length)]
