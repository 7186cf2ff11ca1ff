"""`reprise doctor`: check whether a server would work here, and collect what a bug report needs."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from reprise.cli.arguments import UsageError, add_settings, resolve_arguments
from reprise.cli.checks.check import Check, Level
from reprise.cli.models.choice import with_converted, with_found
from reprise.cli.models.convert import progress_bar
from reprise.cli.units import format_bytes
from reprise.config.settings import Settings

if TYPE_CHECKING:
    from reprise.cli.checks.trial import Answer, Device, Trial

HELP = "Check the machine, the model and one answer, and say what to paste into a bug report."

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --json, --share, --results and the arguments of `reprise serve` to the parser."""
    parser.add_argument("--json", action="store_true", help="Print the checks as JSON.")
    parser.add_argument(
        "--share",
        action="store_true",
        help="Print figures for a bug report instead: machine, versions, what steps cost (measured now), and "
        "those of --results. No texts, names or paths.",
    )
    parser.add_argument(
        "--results",
        metavar="FILE",
        type=Path,
        nargs="+",
        default=[],
        help="Result documents (--json of `reprise verify` and `reprise bench`) to summarize with --share.",
    )
    add_settings(parser)
    parser.usage = "%(prog)s [--json] [--share] [--results FILE ...] [--config FILE] [--SETTING VALUE ...]"
    parser.set_defaults(run=run)


@dataclass
class Findings:
    """The findings of all checks. device, answer: None if the trial of MLX or of the model failed."""

    checks: list[Check] = field(default_factory=list)
    device: "Device | None" = None
    answer: "Answer | None" = None


def run(arguments: argparse.Namespace) -> int:
    """Run all checks and print their results; return 0, or 1 if there is a problem."""
    settings = with_converted(with_found(resolve_arguments(arguments).settings), progress_bar)
    found = Findings()
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
        print(
            f"\n{num_problems} problem(s), {num_warnings} warning(s); `reprise doctor --share` is for reports"
        )
    return 1 if num_problems else 0


def examine(settings: Settings, found: Findings, measures_costs: bool = False) -> Iterator[Check]:
    """Run the checks one by one, the slow ones last, and yield each result. found: gets the findings."""
    # Imported here so that other commands do not load them.
    from huggingface_hub import constants

    from reprise.cli.checks import machine
    from reprise.cli.checks.costs import check_costs
    from reprise.cli.checks.proposals import check_proposal
    from reprise.cli.checks.trial import TrialError, answer, choose_first, find_device, trial
    from reprise.server.banner import LoadingBar

    yield machine.check_python()
    yield machine.check_packages()
    yield machine.check_disk(Path(constants.HF_HUB_CACHE).expanduser(), "models")
    if settings.costs_file:
        yield machine.check_disk(Path(settings.costs_file).parent, "what is learned")
    yield from check_costs(settings.costs_file)
    yield machine.check_port(settings)
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
        memory = [
            machine.check_memory(found.device.usable_bytes, weights),
            machine.check_wired_limit(found.device.working_set_bytes, weights),
        ]
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


def check_device(device: "Device") -> Check:
    """Check that a Mac computes with Metal."""
    if sys.platform == "darwin" and device.working_set_bytes is None:
        advice = "MLX finds no Metal, as in some virtual machines; answers are right, but slow"
        return Check("device", "warning", device.name, advice)
    return Check("device", "ok", device.name)


def check_model(process: "Trial", name: str, source: str) -> tuple[Check, int]:
    """Check the files of a model, and return the bytes of its weights with the result."""
    from reprise.cli.checks.trial import TrialError, inspect

    try:
        known = process.call(inspect, source)
    except TrialError as fault:
        return Check(name, "problem", str(fault)), 0
    weight_bytes = int(known["weight_bytes"])
    text = f"{known['name']}: {known['architecture']}, {format_bytes(weight_bytes)} of weights"
    if not known["refused"]:
        level: Level = "warning" if known["weights_note"] and known["quantization"] else "ok"
        return Check(name, level, text, known["weights_note"]), weight_bytes
    # Without a cache nothing can be computed; otherwise it is a head that is refused.
    level = "warning" if known["cache"] else "problem"
    return Check(name, level, text, known["refused"][0]), weight_bytes


def check_answer(answer: "Answer") -> Check:
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
    from reprise.cli.checks.report import as_markdown, make_report

    try:
        report = make_report(settings, found.checks, found.device, found.answer, results)
    except (OSError, ValueError) as fault:
        raise UsageError(f"--results: {fault}") from fault
    print("reprise: what follows is for the report; it holds no texts, names or paths", file=sys.stderr)
    print(as_markdown(report))
