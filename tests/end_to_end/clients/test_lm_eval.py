"""EleutherAI's lm-evaluation-harness against the real server: its scores are those of the model itself."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings
from reprise.engine.model.loading import LoadedModel, make_loader
from tests.end_to_end.clients.packages import INSTALLED_WITHIN_S, install

DONE_WITHIN_S = 200
QUESTIONS = ("The capital of France is", "Two and two make", "Répète: œuvre, 8 €,")
ANSWERS = (" Paris", " five apples and a pear\n\nand more", " 8 €, œuvre 😀")
NUM_WRITTEN = 12
END = "\n"
SCORES = {
    "output_type": "multiple_choice",
    "doc_to_choice": "{{choices}}",
    "metric_list": [{"metric": "acc"}],
}
WORDS = {
    "output_type": "generate_until",
    "generation_kwargs": {"until": [END], "max_gen_toks": NUM_WRITTEN},
    "metric_list": [{"metric": "exact_match"}],
}


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return make_loader(Settings())(None)


def score(loaded: LoadedModel, context: str, continuation: str) -> tuple[float, bool]:
    """Return the log probability of the continuation, and whether each of its tokens is the likeliest."""
    ids = loaded.tokenizer.encode(context + continuation)
    start = len(loaded.tokenizer.encode(context))
    logits = loaded.model(mx.array([ids[:-1]]))[0, start - 1 :].astype(mx.float32)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    chosen = mx.array(ids[start:])
    likeliest = mx.array_equal(mx.argmax(logprobs, axis=-1), chosen).item()
    return mx.take_along_axis(logprobs, chosen[:, None], axis=-1).sum().item(), bool(likeliest)


def write(loaded: LoadedModel, context: str) -> str:
    """Return the likeliest continuation of NUM_WRITTEN tokens."""
    ids = loaded.tokenizer.encode(context)
    start = len(ids)
    while len(ids) < start + NUM_WRITTEN and ids[-1] not in loaded.tokenizer.eos_ids:
        ids.append(mx.argmax(loaded.model(mx.array([ids]))[0, -1]).item())
    return loaded.tokenizer.decode(ids[start:])


def samples(out: Path, task: str) -> list[dict[str, Any]]:
    """Return what the harness logged of the task, a line for each question."""
    (path,) = out.rglob(f"samples_{task}_*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(INSTALLED_WITHIN_S + DONE_WITHIN_S)
def test_the_harness_gets_the_models_own_scores(server_url: str, loaded: LoadedModel, tmp_path: Path):
    harness = install("lm_eval") / "lm_eval"
    documents = [
        {"question": question, "choices": [*ANSWERS, write(loaded, question)], "answer": 0}
        for question in QUESTIONS
    ]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in documents))
    for name, task in (("scores", SCORES), ("words", WORDS)):
        common = {
            "task": f"reprise_{name}",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
            "doc_to_text": "{{question}}",
            "doc_to_target": "{{answer}}",
            "target_delimiter": "",
        }
        (tmp_path / f"{name}.yaml").write_text(json.dumps(common | task))
    arguments = f"model=demo,base_url={server_url}/v1/completions,tokenizer={BUNDLED_MODEL}"
    done = subprocess.run(
        [
            *(harness, "run", "--model", "local-completions", "--model_args", arguments),
            *("--include_path", tmp_path, "--tasks", "reprise_scores,reprise_words"),
            *("--log_samples", "--output_path", tmp_path / "out"),
        ],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=DONE_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    greedy = set()
    for sample in samples(tmp_path / "out", "reprise_scores"):
        for asked, (given,) in zip(sample["arguments"].values(), sample["resps"], strict=True):
            logprob, is_greedy = score(loaded, asked["arg_0"], asked["arg_1"])
            assert float(given[0]) == pytest.approx(logprob, rel=1e-3)
            assert given[1] == str(is_greedy)
            greedy.add(is_greedy)
    assert greedy == {True, False}
    for sample in samples(tmp_path / "out", "reprise_words"):
        assert sample["resps"] == [[write(loaded, sample["doc"]["question"]).partition(END)[0]]]
