"""Make references.json: what transformers' own classes make of the folders of published_folders.py.

    python -m venv VENV && VENV/bin/pip install torch transformers numpy safetensors
    VENV/bin/python -m tests.engine.embedding.references

in float64 on the CPU. The tests need neither torch nor this.
"""

import json
import tempfile
from pathlib import Path

import numpy as np

from tests.engine.embedding.published_folders import CONFIGS, DECODERS, NO, SIZE, YES, texts, weights_of

FILE = Path(__file__).with_name("references.json")
RANKING = ("modernbert", "new", "xlm-roberta-flash", "qwen3")


def read_references() -> dict[str, list[list[float]]]:
    """Return by architecture what it makes of texts(): means of the last states, or logits.

    Of models that decode the last states, and the difference of the logits of yes and no.
    """
    return json.loads(FILE.read_text())


def _class_and_config(name: str, *, ranks: bool) -> tuple[str, dict[str, object]]:
    """Return the name of transformers' class, and its configuration in its own keys."""
    if name in DECODERS:
        kinds = {"mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma3_text": "Gemma3Text"}
        return kinds[name] + ("ForCausalLM" if ranks else "Model"), dict(DECODERS[name])
    config = dict(CONFIGS[name])
    kind = {"modernbert": "ModernBert", "nomic_bert": "NomicBert", "xlm-roberta-flash": "XLMRoberta"}.get(
        name, "Gte"
    )
    if kind == "NomicBert":
        for theirs, ours in (
            ("n_embd", "hidden_size"),
            ("n_inner", "intermediate_size"),
            ("n_head", "num_attention_heads"),
            ("n_layer", "num_hidden_layers"),
            ("n_positions", "max_position_embeddings"),
            ("layer_norm_epsilon", "layer_norm_eps"),
        ):
            config[ours] = config.pop(theirs)
        config |= {"hidden_act": "silu", "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}
    if kind == "Gte":
        rope: dict[str, object] = {"rope_type": "default", "rope_theta": float(config.pop("rope_theta"))}
        if scaling := config.pop("rope_scaling", None):
            # The same as "ntk": another base, and every frequency divided.
            head = SIZE // config["num_attention_heads"]
            rope = {
                "rope_type": "linear",
                "rope_theta": rope["rope_theta"] * scaling["factor"],
                "factor": scaling["factor"] ** (2 / head),
            }
        config |= {"rope_parameters": rope, "model_type": "gte"}
    config |= {"num_labels": 1} if ranks else {}
    return kind + ("ForSequenceClassification" if ranks else "Model"), config


def _rename(name: str, key: str) -> str:
    """Return what transformers' class calls a weight, if its loading does not know the published name."""
    if name == "xlm-roberta-flash":
        for theirs, ours in (
            ("emb_ln", "embeddings.LayerNorm"),
            ("encoder.layers", "encoder.layer"),
            ("mixer.out_proj", "attention.output.dense"),
            ("mlp.fc1", "intermediate.dense"),
            ("mlp.fc2", "output.dense"),
            ("norm1", "attention.output.LayerNorm"),
            ("norm2", "output.LayerNorm"),
        ):
            key = key.replace(theirs, ours)
    return key


def _weights(name: str, *, ranks: bool) -> dict[str, np.ndarray]:
    found = {}
    for key, array in weights_of(name, ranks=ranks).items():
        if name == "xlm-roberta-flash" and "mixer.Wqkv" in key:
            for part, rows in zip(("query", "key", "value"), np.split(array, 3), strict=True):
                found[_rename(name, key.replace("mixer.Wqkv", f"attention.self.{part}"))] = rows
        else:
            found[_rename(name, key)] = array
    return found


def make(name: str, *, ranks: bool) -> list[list[float]]:
    """Return what transformers makes of every text alone."""
    import torch
    import transformers
    from safetensors.numpy import save_file

    kind, config = _class_and_config(name, ranks=ranks)
    cls = getattr(transformers, kind)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        save_file(_weights(name, ranks=ranks), Path(folder) / "model.safetensors", metadata={"format": "pt"})
        model, loading = cls.from_pretrained(
            folder, output_loading_info=True, attn_implementation="eager", dtype=torch.float64
        )
    missing = {key for key in loading["missing_keys"] if "pooler" not in key}
    assert not missing, missing
    assert not loading["unexpected_keys"], loading["unexpected_keys"]
    model.eval()
    made = []
    for tokens in texts():
        with torch.no_grad():
            out = model(input_ids=torch.tensor([tokens]))
        if name in DECODERS and ranks:
            last = out.logits[0, -1]
            made.append([float(last[YES] - last[NO])])
        elif ranks:
            made.append(out.logits[0].tolist())
        else:
            states = out.last_hidden_state[0]
            is_mean = name not in DECODERS or name == "gemma3_text"
            made.append((states.mean(dim=0) if is_mean else states[-1]).tolist())
    return made


def main() -> None:
    """Write the file."""
    found = {name: make(name, ranks=False) for name in (*CONFIGS, *DECODERS) if name != "jina-bert"}
    found |= {f"{name}, ranking": make(name, ranks=True) for name in RANKING}
    rounded = {name: [[round(number, 9) for number in row] for row in rows] for name, rows in found.items()}
    FILE.write_text(json.dumps(rounded))


if __name__ == "__main__":
    main()
