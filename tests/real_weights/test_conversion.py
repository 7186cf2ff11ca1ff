"""Converted folders are the models: their tokens are llama.cpp's, and a package is served by its name."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from gguf import GGUFReader
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize
from mlx_lm.utils import load_tokenizer

from reprise.engine.model.convert.conversion import convert
from reprise.engine.model.convert.gguf_file import read_gguf
from reprise.engine.model.convert.gguf_folder import SPLITS, make_tokenizer
from reprise.engine.model.convert.sources import Options
from tests.end_to_end.conftest import serving
from tests.engine.model.convert.gguf_files import rewrite_gguf, write_gguf
from tests.real_weights.packages import FETCHED_WITHIN_S, GEMMA3, SMOLLM2, Packaged, gguf_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(FETCHED_WITHIN_S + 400)]

ROOT = Path(__file__).parents[2]
TEXT = "Répète: œuvre 1234,\r\n\n\t\tif a  ==  b:" + 40 * " " + "return '€ 😀'  "
POLISH = """Zażółć gęślą jaźń. W Szczebrzeszynie chrząszcz brzmi w trzcinie i Szczebrzeszyn z tego słynie.
„Ależ skąd!” — odparł dziadek, który 3 maja 1791 r. nie żył jeszcze; miał 2,5 zł i ćwierć kilo śliwek.
Pchnąć w tę łódź jeża lub ośm skrzyń fig? Mężny bądź, chroń pułk twój i sześć flag… Dość błazeństw!
"""
EMOJI = "👩‍👩‍👧‍👦 👍🏽 🇵🇱🇫🇷 ☕️ 🧑🏿‍🚀 ❤️‍🔥 1️⃣ ™️ 🏴󠁧󠁢󠁳󠁣󠁴󠁿 ¯\\_(ツ)_/¯\n"
SCRIPTS = "नमस्ते 你好，世界 こんにちは 한국어 שלום مرحبا\u00a0\u200b\u3000x\n"  # noqa: RUF001
GEMMA3_IDS = [
    236794, 15057, 31002, 236787, 81693, 236743, 236770, 236778, 236800, 236812, 236764, 251, 108, 255969,
    584, 496, 138, 1224, 138, 236763, 236787, 167, 145, 2060, 756, 237762, 163543, 236789, 138,
]  # fmt: skip
"""What Google's own tokenizer.json makes of TEXT."""


def long_text() -> str:
    """Return 9,000 characters of prose and of code each, Polish, emoji, other scripts, and odd characters."""
    prose = "".join((ROOT / name).read_text() for name in ("README.md", "docs/drafting.md"))[:9000]
    code = (ROOT / "engine" / "model" / "loading.py").read_text()[:9000]
    assert len(prose) == len(code) == 9000
    odd = " I'LL don't 'Tis 1234567 ½ ²³ Ⅷ DŽ aBcDeF /path//x\n\n  \n x"
    return prose + code + 3 * (POLISH + EMOJI + SCRIPTS + odd) + TEXT


@pytest.fixture(params=["smollm2_folder", "gemma3_folder"])
def folder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def test_text_comes_back_unchanged(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode(TEXT, add_special_tokens=False)) == TEXT


def test_gemmas_ids_are_those_of_its_own_tokenizer(gemma3_folder: Path) -> None:
    tokenizer = load_tokenizer(gemma3_folder)
    assert tokenizer.encode(TEXT) == [tokenizer.bos_token_id, *GEMMA3_IDS]


@pytest.mark.parametrize(
    ("model", "name"), [(SMOLLM2, "smollm2_folder"), (GEMMA3, "gemma3_folder")], ids=["smollm2", "gemma3"]
)
def test_ids_of_5000_tokens_are_those_of_llama_cpp(
    request: pytest.FixtureRequest,
    model: Packaged,
    name: str,
    llama_cpp: Callable[..., Any],
) -> None:
    """Code, prose, Polish, emoji and other scripts."""
    text = long_text()
    ids = load_tokenizer(request.getfixturevalue(name)).encode(text, add_special_tokens=False)
    assert len(ids) > 5000
    assert ids == llama_cpp("tokenize.mjs", gguf_of(model), text)


@pytest.mark.parametrize(
    ("model", "num_tokens", "start"),
    [
        pytest.param(SMOLLM2, 160, 1, id="smollm2"),
        # Past the window of 512.
        pytest.param(GEMMA3, 560, 528, id="gemma3"),
    ],
)
def test_log_probabilities_are_those_of_llama_cpp(
    model: Packaged, num_tokens: int, start: int, tmp_path: Path, llama_cpp: Callable[..., Any]
) -> None:
    """Of the same file in float32: differences below .002 in the mean, and the same likeliest tokens.

    start: the first token that is compared.
    """
    check_log_probabilities(model, num_tokens, start, tmp_path, llama_cpp)


def check_log_probabilities(
    model: Packaged, num_tokens: int, start: int, tmp_path: Path, llama_cpp: Callable[..., Any]
) -> None:
    source = rewrite_gguf(gguf_of(model), tmp_path / "model.gguf", Kind.F32)
    convert(str(source), tmp_path / "made", Options(), lambda _done, _total: None)
    loaded, tokenizer = mlx_lm.load(str(tmp_path / "made"))
    third, text = num_tokens, long_text()
    mixed = text[9000 - third : 9000 + third] + text[18000 : 18000 + 2 * third]
    ids = [tokenizer.bos_token_id, *tokenizer.encode(mixed, add_special_tokens=False)][:num_tokens]
    theirs = llama_cpp("logprobs.mjs", source, json.dumps(ids), str(start))
    ours = [pair for pairs in log_probabilities(loaded, ids, start) for pair in pairs]
    assert len(ours) == len(theirs) == num_tokens - start
    differences = [abs(own - their) for (own, _), (their, _) in zip(ours, theirs, strict=True)]
    assert np.mean(differences) < 0.002
    assert np.mean([own == their for (_, own), (_, their) in zip(ours, theirs, strict=True)]) >= 0.999
    shutil.rmtree(tmp_path / "made")
    source.unlink()


def log_probabilities(model: Any, ids: list[int], start: int) -> Iterator[list[tuple[float, int]]]:
    """Yield, in pieces, the log probability of every token from start on, and the likeliest one there."""
    factor = 1.0
    if model.model_type == "gemma3_text":
        # By which embeddings are multiplied; mlx-lm, like Google, rounds it to bfloat16, llama.cpp does not.
        exact = model.args.hidden_size**0.5
        factor = exact / mx.array(exact, mx.bfloat16).item()
    hidden = model.model(mx.array([ids]), input_embeddings=model.model.embed_tokens(mx.array([ids])) * factor)
    for at in range(start, len(ids), 128):
        wanted = mx.array(ids[at : at + 128])
        logits = model.model.embed_tokens.as_linear(hidden[0, at - 1 : at - 1 + wanted.size])
        own = mx.take_along_axis(logits, wanted[:, None], axis=-1)[:, 0] - mx.logsumexp(logits, axis=-1)
        yield list(zip(own.tolist(), mx.argmax(logits, axis=-1).tolist(), strict=True))


def test_ends_and_templates_are_those_of_the_models(smollm2_folder: Path, gemma3_folder: Path) -> None:
    """Both end tokens of each; Gemma 3 270M is no chat model."""
    for folder, ends in (
        (smollm2_folder, ("<|im_end|>", "<|endoftext|>")),
        (gemma3_folder, ("<eos>", "<end_of_turn>")),
    ):
        tokenizer = load_tokenizer(folder)
        ids = [tokenizer.convert_tokens_to_ids(end) for end in ends]
        for file in ("config.json", "generation_config.json"):
            assert json.loads((folder / file).read_text())["eos_token_id"] == ids
    assert not load_tokenizer(gemma3_folder).has_chat_template
    shown = load_tokenizer(smollm2_folder).apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert shown == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("split", SPLITS)
def test_text_is_split_as_llama_cpp_does_it(
    split: str, tmp_path: Path, llama_cpp: Callable[..., Any]
) -> None:
    """The bundled model's tokens and merges, behind the splits of Llama 3, Qwen, Mistral and others."""
    fields = {
        "tokenizer.ggml.pre": split,
        "tokenizer.ggml.add_bos_token": False,
        "llama.vocab_size": 4096,
        "llama.rope.dimension_count": 32,
    }
    source = write_gguf(tmp_path / "model.gguf", fields=fields)
    ids = make_tokenizer(read_gguf(source)).encode(long_text(), add_special_tokens=False).ids
    assert ids == llama_cpp("tokenize.mjs", source, long_text())


def test_kept_weights_of_smollm2_are_the_numbers_in_the_file(tmp_path: Path) -> None:
    """Q4_1, embeddings in Q8_0."""
    source = gguf_of(SMOLLM2)
    convert(str(source), tmp_path / "made", Options(dtype="float32"), lambda _done, _total: None)
    arrays = mx.load(str(tmp_path / "made" / "model.safetensors"))
    tensors = {tensor.name: tensor for tensor in GGUFReader(source).tensors}
    for path, name, bits in (
        ("model.embed_tokens", "token_embd", 8),
        ("model.layers.7.self_attn.v_proj", "blk.7.attn_v", 4),
        ("model.layers.29.mlp.down_proj", "blk.29.ffn_down", 4),
    ):
        parts = (arrays[f"{path}.{part}"] for part in ("weight", "scales", "biases"))
        tensor = tensors[f"{name}.weight"]
        meant = dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(np.array(mx.dequantize(*parts, group_size=32, bits=bits)), meant)


WEATHER = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def ask(address: str, text: str, **fields: Any) -> Any:
    """Return the greedy answer to a message, after checking that drafts do not change it."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 10, "temperature": 0, **fields}
    plain, drafted = (
        httpx.post(
            f"{address}/v1/chat/completions", json=body | {"draft": {"type": kind}}, timeout=200
        ).json()
        for kind in ("none", "auto")
    )
    for one in (plain, drafted):
        for call in one["choices"][0]["message"].get("tool_calls", []):
            call["id"] = ""
    assert plain["choices"] == drafted["choices"]
    assert (plain["model"], plain["usage"]["completion_tokens"]) == (
        "smollm2",
        drafted["usage"]["completion_tokens"],
    )
    return plain["choices"][0]


def test_smollm2_is_served_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first start fetches and converts it, the second finds it; calls, stop strings and UTF-8 work."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for is_first in (True, False):
        with serving(tmp_path, "--model", "smollm2") as (address, lines):
            answered = ask(address, "What is the capital of France?", reasoning_effort="none")
            assert (answered["message"]["content"], answered["finish_reason"]) == (
                "The capital of France is Paris.",
                "stop",
            )
            printed = "".join(lines)
            assert ("once, into" in printed) == is_first
            assert "smollm2, demo (llama, 134.5M parameters, " in printed
            if is_first:
                continue
            meta = httpx.get(f"{address}/v1/models/smollm2").json()["meta"]
            assert (meta["n_params"], meta["n_vocab"]) == (134_515_008, 49_152)
            counted = ask(address, "Count from 1 to 9.", stop=["2"])
            assert (counted["message"]["content"][0], counted["finish_reason"]) == ("1", "stop")
            assert "2" not in counted["message"]["content"]
            assert ask(address, "Repeat: Zażółć 😀")["message"]["content"].startswith("Zażó")
            tool = {"tools": [{"type": "function", "function": WEATHER}], "tool_choice": "required"}
            called = ask(address, "What is the weather in Oslo?", max_tokens=40, **tool)
            assert called["finish_reason"] == "tool_calls"
            (call,) = called["message"]["tool_calls"]
            assert json.loads(call["function"]["arguments"]).keys() == {"city"}


KEPT = 1e-4
CASES = {
    "Q4_1 and Q8_0": (None, Options(), KEPT),
    "Q4_0": (Kind.Q4_0, Options(), KEPT),
    "Q8_0": (Kind.Q8_0, Options(), KEPT),
    "F32": (Kind.F32, Options(), 0.0),
    "F16": (Kind.F16, Options(), 0.02),
    "BF16": (Kind.BF16, Options(), 0.1),
    "8 bits": (Kind.F32, Options(bits=8, group_size=64), 0.1),
    "4 bits": (Kind.F32, Options(bits=4, group_size=32), 2.0),
    "dequantised": (None, Options(dequantize=True, dtype="float16"), 0.02),
}
"""Types in the file, what is asked for, and the mean difference of log probabilities that this may make."""


@pytest.mark.parametrize("case", CASES)
def test_folders_of_every_type_give_what_the_file_gives(case: str, tmp_path: Path) -> None:
    """Three real layers; where the weights stay as they are, greedy tokens are equal too."""
    kind, options, bound = CASES[case]
    source = rewrite_gguf(gguf_of(SMOLLM2), tmp_path / "model.gguf", kind, num_layers=3)
    found = []
    for name, each in (("made", options), ("meant", Options(dequantize=True, dtype="float32"))):
        convert(str(source), tmp_path / name, each, lambda _done, _total: None)
        model, tokenizer = mlx_lm.load(str(tmp_path / name))
        ids = tokenizer.encode(TEXT + POLISH[:40])
        logits = model(mx.array([ids]))[0].astype(mx.float32)
        own = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        steps = mlx_lm.stream_generate(model, tokenizer, ids[:20], max_tokens=12)
        found.append((np.array(own)[np.arange(len(ids) - 1), ids[1:]], [step.token for step in steps]))
    (made, greedy), (meant, wanted) = found
    difference = np.mean(np.abs(made - meant))
    assert difference <= bound, case
    if bound <= KEPT:
        assert greedy == wanted
