"""mlx_lm's own `stream_generate` in a process of its own: what one stream of a server is measured against."""

from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from bench.errors import BenchError
from bench.experiment import Row
from bench.serving.traffic import Question, answer_row, by_read

if TYPE_CHECKING:
    from engine.text.tokenizer import Tokenizer

_END_S = 30.0


@dataclass
class Loop:
    """A peer that decodes greedily, one question after the other; its process runs while the context is open.

    may_end: whether end tokens end an answer. draft_model: for mlx_lm's speculative generation.
    Entering the context raises BenchError if the model cannot be loaded.
    """

    name: str
    model: str
    tokenizer: "Tokenizer"
    max_tokens: int
    may_end: bool = True
    draft_model: str | None = None
    num_draft_tokens: int = 2

    def __enter__(self) -> Self:
        spawn = get_context("spawn")
        self._jobs, theirs = spawn.Pipe()
        flags = theirs, self.model, self.may_end, self.draft_model, self.num_draft_tokens
        self._process = spawn.Process(target=_answer_jobs, args=flags, daemon=True)
        self._process.start()
        # Reading then ends with an error when the process does.
        theirs.close()
        try:
            self._receive()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._jobs.close()
        self._process.terminate()
        self._process.join(_END_S)

    def ask(self, questions: Sequence[Question], streams: int = 1) -> list[Row]:  # noqa: ARG002
        """Answer questions one after the other. Once the process has exited, every question fails."""
        began = perf_counter()
        return [self._ask(at, one, began) for at, one in enumerate(questions)]

    def _ask(self, at: int, question: Question, began: float) -> Row:
        started = perf_counter()
        try:
            self._jobs.send((question.ids, self.max_tokens))
            ids, times = self._receive()
        except (BenchError, OSError) as fault:
            return answer_row(at, question, self.max_tokens, error=str(fault))
        text = self.tokenizer.decode(ids[:-1] if ids[-1] in self.tokenizer.eos_ids else ids)
        return answer_row(
            at, question, self.max_tokens, num_prompt_tokens=len(question.ids), tokens=len(ids),
            counted_by="loop", started_s=started - began, duration_s=times[-1],
            arrivals=by_read(times, [1.0] * len(times)), text=text,
            finish_reason="length" if len(ids) == self.max_tokens else "stop",
        )  # fmt: skip

    def _receive(self) -> Any:
        try:
            found = self._jobs.recv()
        except EOFError:
            self._process.join()
            raise BenchError(f"{self.name} exited with status {self._process.exitcode}") from None
        if isinstance(found, str):
            raise BenchError(f"{self.name}: {found}")
        return found


def _answer_jobs(
    jobs: Connection, path: str, may_end: bool, draft_model: str | None, num_draft_tokens: int
) -> None:
    """Send None once the model is loaded, and then the ids and times of each job; a text if one fails."""
    from mlx_lm import load

    try:
        model, tokenizer = load(path)[:2]
        drafting: dict[str, Any] = {}
        if draft_model:
            drafting = {"draft_model": load(draft_model)[0], "num_draft_tokens": num_draft_tokens}
        if not may_end:
            # Cheaper than a logits processor, which takes a concatenation and a scatter in every step.
            tokenizer.eos_token_ids = set()
        jobs.send(None)
        while True:
            jobs.send(generate(model, tokenizer, *jobs.recv(), **drafting))
    except (EOFError, KeyboardInterrupt):
        pass  # The benchmark has ended.
    except (OSError, ValueError, RuntimeError) as fault:
        jobs.send(f"{type(fault).__name__}: {fault}")


def generate(
    model: Any, tokenizer: Any, prompt: Sequence[int], max_tokens: int, **drafting: Any
) -> tuple[list[int], list[float]]:
    """Run the loop once; return the token ids, and the seconds from the call to each of them.

    drafting: draft_model and num_draft_tokens, if any.
    """
    import mlx.core as mx
    from mlx_lm import stream_generate

    ids: list[int] = []
    times: list[float] = []
    start = perf_counter()
    for response in stream_generate(model, tokenizer, list(prompt), max_tokens, **drafting):
        times.append(perf_counter() - start)
        ids.append(response.token)
    # The loop leaves a step in flight; it must not count towards the next round.
    mx.synchronize()
    return ids, times
