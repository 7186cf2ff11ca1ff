"""`reprise doctor`: check whether a server would work here, and collect what a bug report needs.

MLX is tried in a separate process: an error in MLX or a driver may end that process, which is then reported.
"""

import argparse
import itertools
import json
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from reprise.cli.arguments import UsageError, add_settings, resolve_arguments
from reprise.cli.convert import progress_bar
from reprise.cli.find_model import with_converted, with_found
from reprise.cli.output import THOUGHTS_DROPPED, describe_switch, format_bytes
from reprise.config.agents.known import WANTED_TOKENS
from reprise.config.settings import Settings, cache_folder, costs_file

if TYPE_CHECKING:
    # Every command would load them.
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing.queues import Queue

    from reprise.bench.local_engine import LocalEngine
    from reprise.engine.interface.events import Delta

HELP = "Check the machine, the model and one answer, and say what to paste into a bug report."

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --json, --share, --results and the arguments of `reprise serve` to the parser."""
    parser.add_argument("--json", action="store_true", help="Print the checks as JSON.")
    parser.add_argument(
        "--share", action="store_true",
        help="Print figures for a bug report or docs/macs.md instead: machine, versions, what steps cost and "
        "how fast tasks are, measured now within three minutes, and those of --results. No texts, names or "
        "paths, and nothing is written.",
    )  # fmt: skip
    parser.add_argument(
        "--results", metavar="FILE", type=Path, nargs="+", default=[],
        help="Result documents (--json of `reprise verify` and `reprise bench`) to summarize with --share.",
    )  # fmt: skip
    add_settings(parser)
    parser.usage = "%(prog)s [--json] [--share] [--results FILE ...] [--config FILE] [--SETTING VALUE ...]"
    parser.set_defaults(run=run)


Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Check:
    """One check's finding, for people. advice: the remedy; empty if everything is well."""

    name: str
    level: Level
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Device:
    """The device that MLX computes on. working_set_bytes: Metal's recommended limit; None without Metal."""

    name: str
    usable_bytes: int
    working_set_bytes: int | None


@dataclass(frozen=True)
class Answer:
    """A model's answer to the trial's question. is_equal: whether the answer with drafts has equal tokens.

    thought_switch: see Tokenizer.thought_switch.
    model, cost_curve: as in result documents; the curve is empty if it was not measured.
    speeds: of each task, plainly and with drafts. first_token: of a long prompt. Empty if not measured.
    """

    text: str
    num_tokens: int
    load_s: float
    tokens_per_s: float
    is_equal: bool
    model: dict[str, Any]
    cost_curve: list[dict[str, float]]
    thought_switch: dict[str, Any] | None = None
    speeds: dict[str, dict[str, Any]] = field(default_factory=dict)
    first_token: dict[str, float] = field(default_factory=dict)


@dataclass
class Findings:
    """The findings of all checks. device, answer: None if the trial of MLX or of the model failed."""

    checks: list[Check] = field(default_factory=list)
    device: Device | None = None
    answer: Answer | None = None


def run(arguments: argparse.Namespace) -> int:
    """Run all checks and print their results; return 0, or 1 if there is a problem."""
    settings = with_converted(with_found(resolve_arguments(arguments).settings), progress_bar)
    found = Findings()
    if arguments.share:
        print("reprise: measuring, which takes up to three minutes", file=sys.stderr, flush=True)
    for check in examine(settings, found, measures_costs=arguments.share):
        found.checks.append(check)
        if not arguments.json and not arguments.share:
            _print(check)
    num_problems = sum(check.level == "problem" for check in found.checks)
    if arguments.share:
        _print_report(settings, found, arguments.results)
    elif arguments.json:
        print(json.dumps({"checks": [asdict(check) for check in found.checks]}, indent=2))
    else:
        num_warnings = sum(check.level == "warning" for check in found.checks)
        counts = f"{num_problems} problem(s), {num_warnings} warning(s)"
        print(f"\n{counts}; `reprise doctor --share` is for reports")
    return 1 if num_problems else 0


def examine(settings: Settings, found: Findings, measures_costs: bool = False) -> Iterator[Check]:
    """Run the checks one by one, the slow ones last, and yield each result. found: gets the findings."""
    # Imported here so that other commands do not load them.
    from huggingface_hub import constants

    from reprise.server.banner import LoadingBar

    yield check_python()
    yield check_packages()
    yield check_disk(Path(constants.HF_HUB_CACHE).expanduser(), "models")
    yield check_disk(cache_folder(), "what is learned")
    yield from check_costs(costs_file())
    yield check_port(settings)
    with trial() as process:
        try:
            found.device = process.call(find_device)
        except TrialError as fault:
            yield Check("MLX", "problem", str(fault), "install Reprise again (docs/install.md)")
            return
        yield check_device(found.device)
        if settings.model is None and settings.models_dir is None:
            yield check_proposal(found.device.usable_bytes, found.device.name != "CPU")
        settings = process.call(choose_first, settings)
        models = {"model": settings.model_source}
        models |= {"draft model": settings.draft_model} if settings.draft_model else {}
        inspected = [(check_model(process, name, source)) for name, source in models.items()]
        yield from (check for check, _ in inspected)
        weights = sum(num_bytes for _, num_bytes in inspected)
        memory = [check_memory(found.device, weights), check_wired_limit(found.device, weights)]
        yield from memory
        if any(check.level == "problem" for check in [*memory, *(check for check, _ in inspected)]):
            yield Check("answer", "warning", "not tried, since the model cannot be loaded")
            return
        try:
            with LoadingBar() as bar:
                process.show = bar.advance
                found.answer = process.call(answer, settings, measures_costs)
        except TrialError as fault:
            yield Check("answer", "problem", str(fault), "report it with `reprise doctor --share`")
            return
        yield check_answer(found.answer)
        if switch := found.answer.thought_switch:
            yield Check("thoughts", "ok", THOUGHTS_DROPPED, describe_switch(switch))


def check_device(device: Device) -> Check:
    """Check that a Mac computes with Metal."""
    if sys.platform == "darwin" and device.working_set_bytes is None:
        advice = "MLX finds no Metal, as in some virtual machines; answers are right, but slow"
        return Check("device", "warning", device.name, advice)
    return Check("device", "ok", device.name)


def check_model(process: "Trial", name: str, source: str) -> tuple[Check, int]:
    """Check the files of a model, and return the bytes of its weights with the result."""
    try:
        known = process.call(inspect, source)
    except TrialError as fault:
        return Check(name, "problem", str(fault)), 0
    weight_bytes = int(known["weight_bytes"])
    text = f"{known['name']}: {known['architecture']}, {format_bytes(weight_bytes)} of weights"
    if known["is_drafter"]:
        text = f"{known['name']}: {known['kind']}, {format_bytes(weight_bytes)} of weights"
        if name == "model":
            return Check(name, "problem", text, "name it with --draft-model, beside its model"), weight_bytes
    if not known["refused"]:
        level: Level = "warning" if known["weights_note"] and known["quantization"] else "ok"
        return Check(name, level, text, known["weights_note"]), weight_bytes
    # Without a cache nothing can be computed; otherwise it is a head that is refused.
    level = "warning" if known["cache"] else "problem"
    return Check(name, level, text, known["refused"][0]), weight_bytes


def check_answer(answer: Answer) -> Check:
    """Check that the model has answered, and that drafts changed no token."""
    found = (
        f"loaded in {answer.load_s:.1f} s, {answer.num_tokens} tokens at {answer.tokens_per_s:.3g} a second: "
        f"{answer.text.strip()!r}"
    )
    if not answer.num_tokens:
        return Check("answer", "problem", "the model said nothing", "see `reprise info` about its files")
    if not answer.is_equal:
        return Check("answer", "warning", found, "drafts changed a token: `reprise verify` shows where")
    return Check("answer", "ok", found)


def _print(check: Check) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    line = Text(f"{check.level:<8}", style=_COLOURS[check.level])
    console.print(line.append(f"{check.name}: {check.found}", style="default"))
    if check.advice:
        console.print(Text(f"{'':<8}{check.advice}"))


def _print_report(settings: Settings, found: Findings, results: list[Path]) -> None:
    try:
        report = make_report(settings, found, results)
    except (OSError, ValueError) as fault:
        raise UsageError(f"--results: {fault}") from fault
    print("reprise: what follows is for the report; it holds no texts, names or paths", file=sys.stderr)
    print(f"```json\n{json.dumps(report, indent=1)}\n```")


NEWEST_PYTHON = (3, 14)
LOW_DISK_BYTES, NO_DISK_BYTES = 10 << 30, 1 << 30


def check_python() -> Check:
    """Check Python's version, and on a Mac that this Python is built for Apple Silicon."""
    found = f"{platform.python_version()} ({platform.machine()})"
    if sys.platform == "darwin" and platform.machine() != "arm64":
        advice = "MLX needs Python for Apple Silicon; this one runs under Rosetta, or on an Intel Mac"
        return Check("Python", "problem", found, advice)
    if sys.version_info[:2] > NEWEST_PYTHON:
        newest = ".".join(map(str, NEWEST_PYTHON))
        return Check("Python", "warning", found, f"Reprise is tested with versions up to {newest}")
    return Check("Python", "ok", found)


def check_packages() -> Check:
    """Check that MLX and mlx-lm are installed, and that there is only one build of MLX."""
    found = {name: _version(name) for name in ("mlx", "mlx-lm", "mlx-cpu", "mlx-cuda-13")}
    shown = ", ".join(f"{name} {number}" for name, number in found.items() if number)
    if not found["mlx"] or not found["mlx-lm"]:
        return Check("packages", "problem", shown or "no MLX", "install Reprise again (docs/install.md)")
    if found["mlx-cpu"] and found["mlx-cuda-13"]:
        advice = "both builds have the same library: uninstall mlx-cpu, and install mlx-cuda-13 again"
        return Check("packages", "problem", shown, advice)
    return Check("packages", "ok", shown)


def check_memory(device: Device, weights: int) -> Check:
    """Check that weights, in bytes, fit into the memory that models and caches may use, and that is free."""
    import psutil

    memory = psutil.virtual_memory()
    found = (
        f"{format_bytes(memory.total)}, {format_bytes(memory.available)} of it free; "
        f"models and caches may use {format_bytes(device.usable_bytes)}"
    )
    if weights > device.usable_bytes:
        advice = f"the weights take {format_bytes(weights)}: choose a smaller or a quantized model"
        return Check("memory", "problem", found, advice)
    if weights > memory.available:
        advice = f"the weights take {format_bytes(weights)}: end other programs, or expect swapping"
        return Check("memory", "warning", found, advice)
    return Check("memory", "ok", found)


def check_wired_limit(device: Device, weights: int) -> Check:
    """Check that weights, in bytes, fit into the memory that macOS lets Metal keep resident."""
    if device.working_set_bytes is None:
        return Check("wired limit", "ok", "none without Metal")
    found = f"{format_bytes(device.working_set_bytes)} may stay resident for Metal"
    if weights > device.working_set_bytes:
        megabytes = -(-weights // 2**20) + 1024
        advice = f"raise it with sudo sysctl iogpu.wired_limit_mb={megabytes}, or choose a smaller model"
        return Check("wired limit", "problem", found, advice)
    return Check("wired limit", "ok", found)


def check_disk(folder: Path, use: str) -> Check:
    """Check that a folder, which may be missing, has free space and can be written to. use: its purpose."""
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    try:
        free = shutil.disk_usage(existing).free
        probe = existing / f".reprise-{time.time_ns()}"
        probe.touch()
        probe.unlink()
    except OSError as fault:
        return Check(f"disk for {use}", "problem", f"{existing}: {fault.strerror}", "make it writable")
    found = f"{format_bytes(free)} free in {existing}"
    if free < NO_DISK_BYTES:
        return Check(f"disk for {use}", "problem", found, "free some space (`reprise list`, `reprise rm`)")
    if free < LOW_DISK_BYTES:
        return Check(f"disk for {use}", "warning", found, "few models fit; `reprise list` shows what is here")
    return Check(f"disk for {use}", "ok", found)


def check_port(settings: Settings) -> Check:
    """Check that the server can listen at its address, and is not open to others without a key."""
    # Imported here: it loads the server.
    from reprise.server.run import ListenError, bind_address, explain, exposure_error

    place = f"{settings.host} port {settings.port}"
    try:
        with bind_address(settings.host, settings.port) as bound:
            fault = exposure_error(settings, bound)
    except ListenError as error:
        found, _, advice = explain(error, settings).partition(". ")
        level: Level = "problem" if "another program" in found or not advice else "warning"
        return Check("address", level, found, advice)
    return Check("address", "problem", fault) if fault else Check("address", "ok", f"{place} is free")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


FILE, MODEL = "costs of steps", "costs of a model"

_DAY_S = 86_400

EXAMPLE_WIDTH = 8
"""Maximum width of the example step whose cost is shown."""

MAX_MODELS = 5
"""Newest entries to show: each version of MLX has its own."""


def check_costs(path: Path) -> Iterator[Check]:
    """Check the file of learned step costs: whether it can be read, its age, and the costs of each model."""
    try:
        kept = dict(json.loads(path.read_text()))
        age_s = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        kept, age_s = {}, 0.0
    except (OSError, ValueError, TypeError) as fault:
        yield Check(FILE, "warning", f"{path} cannot be read: {fault}", "delete it; costs are learned again")
        return
    if not kept:
        yield Check(FILE, "ok", "nothing is learned yet; the requests of a server teach it")
        return
    yield Check(FILE, "ok", f"of {len(kept)} model(s), written {max(age_s, 0) / _DAY_S:.0f} days ago")
    for entry in list(kept.values())[: -MAX_MODELS - 1 : -1]:
        yield _check_model(entry)


def _check_model(entry: Any) -> Check:
    """Check the costs of one model."""
    # Imported here so that other commands do not load the engine.
    from reprise.engine.speculative.costs.cost_table import StepPrice
    from reprise.engine.speculative.costs.kept_costs import ratios_of

    try:
        of_one_row = {width: ratio for (rows, width), ratio in ratios_of(entry).items() if rows == 1}
    except ValueError:
        return Check(MODEL, "warning", "unusable", "nothing is to be done: the model's requests replace them")
    narrow = [width for width in of_one_row if width <= EXAMPLE_WIDTH]
    if not narrow:
        return Check(MODEL, "ok", f"{entry.get('model')}: nothing of steps of up to {EXAMPLE_WIDTH} tokens")
    price = StepPrice(1, max(narrow), of_one_row[max(narrow)], is_seen=True)
    return Check(MODEL, "ok", f"{entry.get('model')}: {price.describe()}")


@dataclass(frozen=True)
class Proposal:
    """A model to begin with. name: for `reprise serve`. weight_bytes: its weights' approximate size.

    token_bytes: a token's keys and values. context_tokens: its maximum context.
    """

    name: str
    weight_bytes: int
    token_bytes: int
    context_tokens: int
    good_for: str

    @property
    def agent_bytes(self) -> int:
        """Its approximate memory with a context for agents."""
        return self.weight_bytes + WANTED_TOKENS * self.token_bytes + WORKING_BYTES


WORKING_BYTES = 1 << 30
"""For a step's own arrays and the program, as in docs/models.md."""

_MIB = 1 << 20
PROPOSALS = (
    # In bfloat16, as it is served without a GPU; with one it takes less.
    Proposal("smollm2", 257 * _MIB, 23_040, 8192, "trying chats; it errs often"),
    Proposal("mlx-community/Qwen3-0.6B-4bit", 320 * _MIB, 114_688, 40_960, "short answers and small edits"),
    Proposal("mlx-community/Qwen3-1.7B-4bit", 923 * _MIB, 114_688, 40_960, "short answers and small edits"),
    Proposal(
        "mlx-community/Qwen3-4B-Instruct-2507-4bit", 2158 * _MIB, 147_456, 262_144, "chats, edits and agents"
    ),
    Proposal("mlx-community/Qwen3-8B-4bit", 4394 * _MIB, 147_456, 40_960, "chats and edits"),
    Proposal("mlx-community/Qwen3-14B-4bit", 7923 * _MIB, 163_840, 40_960, "chats and edits"),
    Proposal("mlx-community/gpt-oss-20b-MXFP4-Q4", 11_229 * _MIB, 24_576, 131_072, "chats, edits and agents"),
    Proposal(
        "mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit", 16_379 * _MIB, 98_304, 262_144,
        "agents; it computes with 3B parameters at a time",
    ),
    Proposal(
        "mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit", 42_743 * _MIB, 24_576, 262_144,
        "agents with long contexts",
    ),
)  # fmt: skip
"""From small to large, all of them also in docs/models.md, with the same sizes. They are calculated; none was
downloaded for this list."""

SHARE = 0.6
"""Share of the memory for models and caches that weights may take: an agent's context takes the rest."""


def propose(usable_bytes: int, has_gpu: bool) -> Proposal:
    """Return the largest model of the list that fits into the memory for models and caches.

    Without a GPU, return the smallest model: MLX then computes slowly with the hub's 4-bit weights, whose
    scales are bfloat16, and the smallest model is converted on this machine, with other scales.
    """
    fitting = [one for one in PROPOSALS if one.weight_bytes <= SHARE * usable_bytes]
    return fitting[-1] if fitting and has_gpu else PROPOSALS[0]


def propose_for_agents(usable_bytes: int, has_gpu: bool) -> Proposal | None:
    """Return the largest model that fits with a context for agents; None if none does."""
    fitting = [one for one in PROPOSALS if one.context_tokens >= WANTED_TOKENS]
    fitting = [one for one in fitting if one.agent_bytes <= usable_bytes]
    return fitting[-1] if fitting and has_gpu else None


def check_proposal(usable_bytes: int, has_gpu: bool) -> Check:
    """Propose a model for this machine, and one for agents if that differs."""
    one, other = propose(usable_bytes, has_gpu), propose_for_agents(usable_bytes, has_gpu)
    found = (
        f"{one.name} fits: about {format_bytes(one.weight_bytes)} of weights, a context of up to "
        f"{one.context_tokens:,} tokens, for {one.good_for}"
    )
    if other is None:
        found += f"; none of the list is for agents here, which want {WANTED_TOKENS:,} tokens"
    advice = f"reprise serve {one.name}"
    if other not in (None, one):
        advice += f", or for agents, which want {WANTED_TOKENS:,} tokens: reprise serve {other.name}"
    return Check("a model for this machine", "ok", found, advice)


QUESTION = "Who are you?"
MAX_TOKENS = 24

TASKS = {"edits": "edits", "quotes": "quotes", "chat": "Explain in a few paragraphs why the sky is blue."}
"""What --share measures: workloads of `reprise bench decode`, and a question."""
TASK_S, TASK_TOKENS = 12.0, (32, 256)
"""About how long a task may take, and its fewest and most tokens."""
LONG_PROMPTS, LONG_PROMPT_S = (1024, 8192), 60.0
"""Lengths of prompts in tokens, and about how long the longest may take."""

LIMIT_S, TICK_S = 300.0, 0.2
"""Seconds after which a process that says nothing is given up, however long it takes in all, and seconds
between two looks at what it has said. It speaks before each trial of the model and with each token."""

Show = Callable[[str, float], None]
"""Called with the current task and its share done."""


class TrialError(Exception):
    """The trial's process ended or hung, or its function raised; the message is one line."""


class Trial:
    """A process that runs functions one by one.

    said: the (stage, share) pairs that they report with say().
    """

    def __init__(self, pool: "ProcessPoolExecutor", said: "Queue[tuple[str, float]]") -> None:
        self._pool = pool
        self._said = said
        self.show: Show = lambda _stage, _share: None

    def call(self, function: Callable[..., Any], *given: Any) -> Any:
        """Run a function in the trial's process, and return its result. Raises TrialError."""
        from concurrent.futures import wait
        from concurrent.futures.process import BrokenProcessPool

        try:
            future = self._pool.submit(_outcome, partial(function, *given))
            heard_at = monotonic()
            while not wait([future], TICK_S).done:
                while not self._said.empty():
                    heard_at = monotonic()
                    self.show(*self._said.get())
                if monotonic() - heard_at > LIMIT_S:
                    for process in (self._pool._processes or {}).values():
                        process.kill()
                    raise TrialError(f"nothing came within {LIMIT_S:g} seconds")
            result, told = future.result()
        except BrokenProcessPool as fault:
            said = "the process ended without a word, as after a fault in MLX or a driver"
            raise TrialError(said) from fault
        if told is not None:
            raise TrialError(told)
        return result


@contextmanager
def trial() -> Iterator[Trial]:
    """Start a process for a trial, and end it when the context ends."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    context = get_context("spawn")
    said: Queue[tuple[str, float]] = context.Queue()
    pool = ProcessPoolExecutor(1, context, _say_to, (said,))
    try:
        yield Trial(pool, said)
    finally:
        pool.shutdown(cancel_futures=True)


def _outcome(function: Callable[[], Any]) -> tuple[Any, str | None]:
    """Return a function's result, or its exception as one line.

    Not the exception itself: unpickling an engine's exception would import MLX on a thread of the waiting
    process, which may then abort at exit.
    """
    try:
        return function(), None
    except Exception as fault:  # noqa: BLE001 - told to the process that waits
        is_known = type(fault).__name__ in ("ArgumentsError", "ModelError")
        text = str(fault) if is_known else f"{type(fault).__name__}: {fault}"
        return None, text.splitlines()[0]


_said: list["Queue[tuple[str, float]]"] = []
"""Progress output of a trial's process."""


def _say_to(said: "Queue[tuple[str, float]]") -> None:
    _said.append(said)


def say(stage: str, share: float) -> None:
    """Report the stage of the work and its share done to the waiting process."""
    for said in _said:
        said.put((stage, share))


def find_device() -> Device:
    """Return the device that MLX computes on here."""
    from reprise.engine.model.device import device_name, usable_bytes, working_set_bytes

    return Device(device_name(), usable_bytes(), working_set_bytes())


def choose_first(settings: Settings) -> Settings:
    """Return settings with the model that a server would start; see engine/pool/catalogue.py."""
    from reprise.engine.pool.catalogue import choose_first

    return choose_first(settings)


def inspect(source: str) -> dict[str, Any]:
    """Return the facts of `reprise info --json` about a model's folder. Raises ModelError."""
    from reprise.engine.checkpoint import inspect_checkpoint

    return asdict(inspect_checkpoint(source))


def answer(settings: Settings, measures_costs: bool) -> Answer:
    """Load the model and let it answer once plainly and once with drafts. Writes nothing to disk.

    measures_costs: also measure the costs of steps, which takes some seconds more.
    """
    from reprise.bench.document import new_document
    from reprise.bench.local_engine import LocalEngine
    from reprise.bench.workloads.chats import render
    from reprise.engine.interface.request import DraftChoice, GenerationRequest, Sampling
    from reprise.engine.speculative.costs.step_costs import StepCosts

    settings = replace(settings, keeps_costs=False, ngram_table_file=None, prefix_cache_dir=None, record=None)
    # By these costs every draft is worth verifying, so that verification is tried too.
    flat = StepCosts({(1, 1): 1.0, (1, 32): 1.0}, is_learned=False)
    with LocalEngine(settings, None if measures_costs else flat, say) as local:
        prompt = render(local.engine.tokenizer, QUESTION)
        requests = [
            GenerationRequest(
                f"doctor-{choice.type}", prompt, MAX_TOKENS, Sampling(0, temperature=0), draft=choice
            )
            for choice in (DraftChoice("none"), DraftChoice())
        ]
        num_said = itertools.count(1)
        plain, drafted = (
            local.answer([request], lambda _: say("Answering", next(num_said) / (2 * MAX_TOKENS)))[0]
            for request in requests
        )
        known = new_document(argparse.Namespace(), local.engine.info, local.step_costs)
        tokens_per_s = plain.usage.decode_tokens_per_s
        return Answer(
            local.engine.tokenizer.decode(plain.tokens), len(plain.tokens), local.engine.info.loaded_s,
            tokens_per_s, plain.tokens == drafted.tokens,
            known["model"], known["cost_curve"], local.engine.tokenizer.thought_switch,
            *((measure_speeds(local, tokens_per_s), measure_first_token(local)) if measures_costs else ()),
        )  # fmt: skip


def measure_speeds(local: "LocalEngine", tokens_per_s: float) -> dict[str, dict[str, Any]]:
    """Answer each of TASKS plainly and with drafts, greedily; return tokens a second and whether they agree.

    tokens_per_s: about how fast the model is.
    """
    from reprise.bench.workloads import WORKLOADS, make_chats
    from reprise.bench.workloads.chats import render
    from reprise.engine.interface.request import DraftChoice, GenerationRequest, Sampling

    tokenizer = local.engine.tokenizer
    num = int(min(max(TASK_S * tokens_per_s, TASK_TOKENS[0]), TASK_TOKENS[1]))
    speeds, num_said = {}, itertools.count(1)
    for task, source in TASKS.items():
        asked: Any = source
        if source in WORKLOADS:
            (chat,) = make_chats(source, 1, 1, lambda text: len(render(tokenizer, text)))
            asked = chat.turns[0].for_template()
        prompt = render(tokenizer, asked)
        plain, drafted = (
            local.answer(
                [GenerationRequest(task, prompt, num, Sampling(0, temperature=0), draft=choice)],
                lambda _: say("Measuring", next(num_said) / (2 * num * len(TASKS))),
            )[0]
            for choice in (DraftChoice("none"), DraftChoice())
        )
        speeds[task] = {
            "num_tokens": len(plain.tokens),
            "plain_tokens_per_s": plain.usage.decode_tokens_per_s,
            "drafted_tokens_per_s": drafted.usage.decode_tokens_per_s,
            "is_equal": plain.tokens == drafted.tokens,
        }
    return speeds


def measure_first_token(local: "LocalEngine") -> dict[str, float]:
    """Return the seconds until the first token, of the longest of LONG_PROMPTS that is expected in time."""
    from reprise.engine.interface.request import DraftChoice, GenerationRequest, Sampling

    measured = dict[str, float]()
    for num in LONG_PROMPTS:
        expected_s = measured.get("seconds", 0.0) * num / measured.get("num_prompt_tokens", num)
        if num > local.engine.info.context_tokens // 2 or expected_s > LONG_PROMPT_S:
            break
        # Ids that every vocabulary has; what they say does not matter. The prompts begin differently.
        prompt = tuple(100 + (7 * at + num) % 151 for at in range(num))
        request = GenerationRequest(
            "long", prompt, 1, Sampling(0, temperature=0), draft=DraftChoice("none"), reports_progress=True
        )
        (end,) = local.answer([request], _say_progress)
        measured = {"num_prompt_tokens": num, "seconds": end.usage.first_token_s}
    return measured


def _say_progress(delta: "Delta") -> None:
    if (read := delta.progress) is not None:
        say(f"Reading a prompt of {read.num_tokens:,} tokens", read.num_processed / read.num_tokens)


SHOWN_TEXTS = (
    "architecture", "cpu", "date", "device", "draft_type", "dtype", "mlx", "mlx_lm", "parity", "python",
    "reprise", "system",
)  # fmt: skip
"""Keys whose texts are shown; other keys show only numbers and booleans."""

MAX_ITEMS = 64
"""Items of a list; longer ones are samples, not summaries."""

_OF_ANSWER = ("num_tokens", "load_s", "tokens_per_s", "is_equal")
_KEY = re.compile(r"\w{1,40}")


def make_report(settings: Settings, found: Findings, results: Iterable[Path]) -> dict[str, Any]:
    """Return the figures of a bug report, by name.

    results: paths of result documents of `reprise verify` and `reprise bench`.
    Raises OSError or ValueError if a document cannot be read.
    """
    from reprise.bench.document import describe_machine, read

    device, answer = found.device, found.answer
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "device": asdict(device) if device else None,
        "checks": {check.name: check.level for check in found.checks},
        "model": {"source": source_of(settings)} | (summarize(answer.model) if answer else {}),
        "answer": {name: getattr(answer, name) for name in _OF_ANSWER} if answer else None,
        "speeds": answer.speeds if answer else {},
        "first_token": answer.first_token if answer else {},
        "cost_curve": answer.cost_curve if answer else [],
        "results": [summarize_results(read(path)) for path in results],
    }


def source_of(settings: Settings) -> str:
    """Return the model's name on the hub without its owner's; "bundled" or "a folder" for other models."""
    if settings.model is None:
        return "bundled"
    if Path(settings.model).exists():
        return "a folder"
    return settings.model.rpartition("/")[2]


def summarize_results(document: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a result document; see summarize()."""
    from reprise.bench.document import SECTIONS

    shown = ("date", "reprise", "machine", "model", *SECTIONS)
    return dict(summarize({name: document[name] for name in shown if name in document}))


def summarize(found: Any) -> Any:
    """Reduce a JSON value to numbers, booleans, and texts under SHOWN_TEXTS keys.

    Lists end after MAX_ITEMS items. Other texts become None in a list, and are left out of an object. The
    names of our own workloads are shown too.
    """
    if isinstance(found, dict):
        known = {key: value for key, value in found.items() if _KEY.fullmatch(str(key))}
        return {
            key: value if isinstance(value, str) else summarize(value)
            for key, value in known.items()
            if not isinstance(value, str) or _is_shown(key, value)
        }
    if isinstance(found, list | tuple):
        return [summarize(item) for item in found[:MAX_ITEMS]]
    return found if isinstance(found, bool | int | float) else None


def _is_shown(key: str, text: str) -> bool:
    from reprise.bench.workloads import WORKLOADS

    # Chats of the user's own have the name of their file.
    return key in SHOWN_TEXTS or (key == "workload" and text in WORKLOADS)
