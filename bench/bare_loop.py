"""Run plain `mlx_lm.stream_generate`, the baseline that one stream of a server is measured against.

    python -m bench.bare_loop --model DIR [--draft-model DIR --num-draft-tokens N] [--may-end]

Prints {"ready": true} once the model is loaded. Then reads jobs from stdin, one JSON object a line, and
writes one result a line to stdout. Exits when stdin ends.

    {"prompt": [1, 2, 3], "max_tokens": 4}
    {"tokens": 4, "prefill_s": 0.1, "decode_s": 0.3, "token_ids": [5, 6, 7, 8], "arrived_s": [0.1, ...]}

Decoding is greedy. Without --may-end every answer has its full length, because the loop gets a tokenizer
without end tokens. (A logits processor could forbid them too, at the cost of a concatenation and a scatter in
every step.) With a draft model it is mlx_lm's speculative generation.
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


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one job.

    tokens: number of tokens; always max_tokens without --may-end. token_ids: includes the end token.
    prefill_s: from the call to the first token. decode_s: from the first token to the last.
    arrived_s: seconds from the call to each token.
    """

    tokens: int
    prefill_s: float
    decode_s: float
    token_ids: tuple[int, ...]
    arrived_s: tuple[float, ...]


def generate(model: Any, tokenizer: Any, prompt: Sequence[int], max_tokens: int, **drafting: Any) -> Result:
    """Run the loop once.

    tokenizer: mlx-lm's, without end tokens if every answer must have its full length.
    drafting: draft_model and num_draft_tokens, if any.
    """
    ids: list[int] = []
    times: list[float] = []
    start = perf_counter()
    for response in stream_generate(model, tokenizer, list(prompt), max_tokens, **drafting):
        times.append(perf_counter() - start)
        ids.append(response.token)
    # The loop leaves a step in flight; it must not count towards the next round.
    mx.synchronize()
    return Result(len(ids), times[0], times[-1] - times[0], tuple(ids), tuple(times))


def main() -> None:
    """Run jobs until stdin ends."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.bare_loop", description="Run mlx-lm's own loop on jobs."
    )
    parser.add_argument("--model", required=True, type=Path, help="model folder")
    parser.add_argument("--draft-model", type=Path, help="folder of the draft model")
    parser.add_argument("--num-draft-tokens", type=int, default=2, help="tokens of one draft")
    parser.add_argument("--may-end", action="store_true", help="let answers end at the model's end token")
    arguments = parser.parse_args()
    # Keeps what libraries print out of the results.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as results:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        model, tokenizer = load(str(arguments.model))[:2]
        drafting: dict[str, Any] = {}
        if arguments.draft_model:
            drafting["draft_model"] = load(str(arguments.draft_model))[0]
            drafting["num_draft_tokens"] = arguments.num_draft_tokens
        if not arguments.may_end:
            tokenizer.eos_token_ids = set()
        print(json.dumps({"ready": True}), file=results, flush=True)
        for line in sys.stdin:
            job = json.loads(line)
            result = generate(model, tokenizer, job["prompt"], job["max_tokens"], **drafting)
            print(json.dumps(asdict(result)), file=results, flush=True)


if __name__ == "__main__":
    main()
