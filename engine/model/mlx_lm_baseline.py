"""The bare loop: `mlx_lm.stream_generate` as it stands, what one stream of a server is measured against.

    python -m engine.bare_loop --model DIR [--draft-model DIR --num-draft-tokens N] [--may-end]

Says {"ready": true} once the model is loaded, then answers each job, one JSON object a line on stdin,
with one on stdout; ends when stdin does.

    {"prompt": [1, 2, 3], "max_tokens": 4}
    {"tokens": 4, "prefill_s": 0.1, "decode_s": 0.3, "token_ids": [5, 6, 7, 8], "arrived_s": [0.1, ...]}

Greedy, and every answer has its full length, unless it may end: the loop gets a tokenizer without end
tokens. A logits processor would forbid them too, but costs the loop a concatenation and a scatter at every
step. With a draft model it is mlx_lm's speculative generation.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import mlx.core as mx
from mlx_lm import load, stream_generate
from mlx_lm.utils import load_config
from mlx_lm.utils import load_tokenizer as load_wrapped

from engine.model.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Result:
    """One job's answer.

    tokens: how many came; always max_tokens, unless the answer may end. token_ids has its end token.
    prefill_s: from the call to the first token. decode_s: from the first token to the last.
    arrived_s: when each token came, since the call.
    """

    tokens: int
    prefill_s: float
    decode_s: float
    token_ids: tuple[int, ...]
    arrived_s: tuple[float, ...]


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a model folder, without its weights."""
    config = load_config(folder)
    wrapped = load_wrapped(folder, eos_token_ids=config.get("eos_token_id"))
    text = config.get("text_config") or config
    return Tokenizer(wrapped, int(text.get("vocab_size") or len(wrapped.get_vocab())))


def generate(model: Any, tokenizer: Any, prompt: Sequence[int], max_tokens: int, **drafting: Any) -> Result:
    """Run the loop once.

    tokenizer: mlx-lm's, its end tokens taken away if every answer is to have its full length.
    drafting: draft_model and num_draft_tokens, if any.
    """
    ids: list[int] = []
    times: list[float] = []
    start = perf_counter()
    for response in stream_generate(model, tokenizer, list(prompt), max_tokens, **drafting):
        times.append(perf_counter() - start)
        ids.append(response.token)
    # The loop leaves a step in flight; it belongs to nobody's time, least of all the next round's.
    mx.synchronize()
    return Result(len(ids), times[0], times[-1] - times[0], tuple(ids), tuple(times))


def main() -> None:
    """Answer jobs until there are no more."""
    parser = argparse.ArgumentParser(
        prog="python -m engine.bare_loop", description="Run the bare loop on jobs."
    )
    parser.add_argument("--model", required=True, type=Path, help="model folder")
    parser.add_argument("--draft-model", type=Path, help="folder of a model that drafts")
    parser.add_argument("--num-draft-tokens", type=int, default=2, help="of one draft")
    parser.add_argument("--may-end", action="store_true", help="let answers end where the model ends them")
    arguments = parser.parse_args()
    # Libraries that print must not print between the answers.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        model, tokenizer = load(str(arguments.model))[:2]
        drafting: dict[str, Any] = {}
        if arguments.draft_model:
            drafting["draft_model"] = load(str(arguments.draft_model))[0]
            drafting["num_draft_tokens"] = arguments.num_draft_tokens
        if not arguments.may_end:
            tokenizer.eos_token_ids = set()
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for line in sys.stdin:
            job = json.loads(line)
            result = generate(model, tokenizer, job["prompt"], job["max_tokens"], **drafting)
            print(json.dumps(asdict(result)), file=answers, flush=True)


if __name__ == "__main__":
    main()
