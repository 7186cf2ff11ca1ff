"""Run plain `mlx_lm.stream_generate`, the baseline that one stream of a server is measured against.

    python -m bench.serving.bare_loop --model DIR [--draft-model DIR --num-draft-tokens N] [--may-end]

Prints {"ready": true} once the model is loaded. Then reads jobs from stdin, one JSON object a line, and
writes one result a line to stdout, until stdin ends. arrived_s: seconds from the call to each token.

    {"prompt": [1, 2, 3], "max_tokens": 4}
    {"token_ids": [5, 6, 7, 8], "arrived_s": [0.1, ...]}

Decoding is greedy. Without --may-end every answer has its full length, because the loop gets a tokenizer
without end tokens. (A logits processor could forbid them too, at the cost of a concatenation and a scatter in
every step.) With a draft model it is mlx_lm's speculative generation.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import mlx.core as mx
from mlx_lm import load, stream_generate


def generate(
    model: Any, tokenizer: Any, prompt: Sequence[int], max_tokens: int, **drafting: Any
) -> dict[str, Any]:
    """Run the loop once. drafting: draft_model and num_draft_tokens, if any."""
    ids: list[int] = []
    times: list[float] = []
    start = perf_counter()
    for response in stream_generate(model, tokenizer, list(prompt), max_tokens, **drafting):
        times.append(perf_counter() - start)
        ids.append(response.token)
    # The loop leaves a step in flight; it must not count towards the next round.
    mx.synchronize()
    return {"token_ids": ids, "arrived_s": times}


def main() -> None:
    """Run jobs until stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m bench.serving.bare_loop")
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft-model")
    parser.add_argument("--num-draft-tokens", type=int, default=2)
    parser.add_argument("--may-end", action="store_true")
    arguments = parser.parse_args()
    # Keeps what libraries print out of the results.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as results:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        model, tokenizer = load(arguments.model)[:2]
        drafting: dict[str, Any] = {}
        if arguments.draft_model:
            drafting = {
                "draft_model": load(arguments.draft_model)[0], "num_draft_tokens": arguments.num_draft_tokens
            }  # fmt: skip
        if not arguments.may_end:
            tokenizer.eos_token_ids = set()
        print(json.dumps({"ready": True}), file=results, flush=True)
        for line in sys.stdin:
            job = json.loads(line)
            result = generate(model, tokenizer, job["prompt"], job["max_tokens"], **drafting)
            print(json.dumps(result), file=results, flush=True)


if __name__ == "__main__":
    main()
