"""`reprise bench economics`: measure when drafting pays for this model on this machine."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain, zip_longest

from rich.console import Console

from bench import argument_types, document, draft_model, outputs
from bench.decode.progress import WorkProgress
from bench.economics.controlled import forced_costs
from bench.economics.report import EnergySource, print_report, rows, section
from bench.economics.trials import LEVELS, DraftSetting, RunOptions, Trial, TrialRunner
from bench.energy import EnergyMeter
from bench.errors import ArgumentsError
from bench.local_engine import LocalEngine
from bench.workloads import WORKLOADS, Chat, lengths_of, make_chats, own_chats
from config.setting import SettingsError
from config.settings import Settings
from engine.model.loading import ModelError
from engine.model.tokenizer import TemplateError
from engine.request import DraftType

SUMMARY = "Measure when drafting pays, and advise which draft type and length to use."
TYPES: tuple[DraftType, ...] = ("suffix", "ngram-mod", "ngram-simple")
MODEL: DraftType = "draft-model"
DEFAULT_LENGTHS = (1, 2, 4, 8, 16)
DEFAULT_WORKLOADS = "edits,passage,free"
_WIDTH = 120
_MAX_DRAFT_TOKENS = 255


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench economics` to the parser."""
    parser.description = (
        "Measure when drafting pays. A drafter that knows the answer makes errors at chosen rates, so that "
        "every acceptance rate occurs at every draft length; from these runs tokens/s = a + b * acceptance "
        "and the break-even acceptance are fitted. The real drafters run on chats with every draft verified; "
        "--draft-type auto runs as on a server, which leaves out drafts that do not pay. Every run is "
        "compared with plain runs of the same chat before and after it. The report ends with advice. Times "
        "are of decoding only; drafters see only the chat itself."
    )
    add = parser.add_argument
    add("--model", type=argument_types.model_folder, metavar="DIR", help="Default: the bundled model.")
    draft_model.add_arguments(parser, "Also measure drafts of this model.")
    add("--workloads", default=DEFAULT_WORKLOADS, metavar="NAMES",
        help=f"Any of {', '.join(WORKLOADS)}. Default: {DEFAULT_WORKLOADS}.")  # fmt: skip
    add("--prompts", type=argument_types.input_file, metavar="FILE",
        help='Your own chats instead: JSON lines of chat requests, {"messages": [...]}.')  # fmt: skip
    add("--prompt-tokens", type=argument_types.count, metavar="N",
        help="Prompt length, for workloads of variable length. Default: the shortest.")  # fmt: skip
    add("--chats", type=argument_types.count, default=6, metavar="N",
        help="Chats of each workload, and as many for controlled acceptance; intervals need at least 3. "
        "Default: 6.")  # fmt: skip
    add("--num-draft-tokens", type=argument_types.levels, default=DEFAULT_LENGTHS, metavar="K,L",
        help="Draft lengths. Default: 1,2,4,8,16.")  # fmt: skip
    add("--draft-types", default=",".join(TYPES), metavar="NAMES",
        help=f"Default: {','.join(TYPES)}, and draft-model with --draft-model.")  # fmt: skip
    add("--max-tokens", type=argument_types.count, default=96, metavar="N",
        help="Maximum tokens of each answer. Default: 96.")  # fmt: skip
    add("--repeats", type=argument_types.count, default=1, metavar="N",
        help="Runs of each answer, of which the fastest counts; for machines that are not idle. "
        "Default: 1.")  # fmt: skip
    add("--seed", type=int, default=1, metavar="N", help="Seed of the chats. Default: 1.")
    outputs.add_arguments(parser, "Write a row per run to FILE.")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print. Return 2 if the arguments cannot be combined, 1 if nothing could be measured."""
    try:
        groups = _draft_settings(arguments)
        prompts = own_chats(arguments.prompts, arguments.workloads.split(","))
    except (OSError, ValueError) as fault:
        print(f"reprise bench economics: {fault}", file=sys.stderr)
        return 2
    console = outputs.make_console(_WIDTH)
    try:
        with EnergyMeter() as meter:
            trials, record = _measure(arguments, groups, prompts, meter)
            energy = EnergySource(meter.source, meter.reason)
    except (ArgumentsError, RuntimeError) as fault:
        # RuntimeError: a request failed.
        print(f"reprise bench economics: {fault}", file=sys.stderr)
        return 2 if isinstance(fault, ArgumentsError) else 1
    if not trials:
        print("reprise bench economics: every answer was too short to measure", file=sys.stderr)
        return 1
    curve = {int(one["width"]) - 1: one["seconds"] for one in record["cost_curve"]}
    results = section(trials, curve, energy)
    record["economics"] = results
    print_report(console, results)
    console.print(", ".join(f"{key} {value}" for key, value in record["machine"].items()), highlight=False)
    outputs.write(arguments, record, rows(trials))
    return 0


def _draft_settings(arguments: argparse.Namespace) -> list[list[DraftSetting]]:
    """Return the draft types and lengths to measure, grouped by length. Raises ValueError."""
    known: dict[str, DraftType] = {name: name for name in (*TYPES, MODEL)}
    names = arguments.draft_types.split(",")
    for name in names:
        if name not in known:
            raise ValueError(f"--draft-types: {name} is not one of {', '.join(known)}")
    if MODEL in names and not arguments.draft_model:
        raise ValueError(f"--draft-types: {MODEL} needs a draft model; name one with --draft-model")
    if arguments.draft_model and MODEL not in names:
        names.append(MODEL)
    if max(arguments.num_draft_tokens) > _MAX_DRAFT_TOKENS:
        longest = max(arguments.num_draft_tokens)
        raise ValueError(f"--num-draft-tokens: {longest} is above {_MAX_DRAFT_TOKENS}")
    return [[(known[name], length) for name in names] for length in sorted(arguments.num_draft_tokens)]


def _measure(
    arguments: argparse.Namespace,
    groups: Sequence[Sequence[DraftSetting]],
    prompts: Sequence[Chat] | None,
    meter: EnergyMeter,
) -> tuple[list[Trial], document.Document]:
    """Return all trials, and a result document without its section.

    The first engine runs as on a server, with step costs that it has just measured; the second one is made to
    verify every draft.
    """
    lengths = [group[0][1] for group in groups]
    trials: list[Trial] = []
    try:
        # The amount of work is known only after the chats are made, but progress is shown until the end.
        with ExitStack() as displays:
            with LocalEngine(_settings(arguments, Settings().num_draft_tokens)) as local:
                chats = _chats(arguments, prompts, local)
                record = document.new_document(
                    document.command_line(arguments), local.engine.info, local.engine.costs
                )
                controlled = _mixed(chats, arguments.chats)
                drafts: list[list[DraftSetting]] = [[("auto", local.engine.settings.num_draft_tokens)]]
                num_runs = len(chats) * 3 + len(chats) * (1 + sum(len(group) + 1 for group in groups))
                num_runs += len(lengths) * (3 + len(controlled) * (2 + len(LEVELS)))
                work = displays.enter_context(WorkProgress(Console(stderr=True), num_runs))
                runner = _runner(arguments, local, meter, work)
                for number, chat in enumerate(chats):
                    work.begin(f"auto, as on a server: {chat.workload}")
                    trials += runner.compare(number, chat, drafts, is_gated=True)
            with LocalEngine(_settings(arguments, max(lengths)), forced_costs(max(lengths))) as local:
                runner = _runner(arguments, local, meter, work)
                work.begin("every draft verified: warming up")
                runner.warm_up(chats[0], lengths)
                for number, chat in controlled:
                    work.begin(f"every draft verified, controlled acceptance: {chat.workload}")
                    for length in lengths:
                        trials += runner.control(number, chat, length)
                for number, chat in enumerate(chats):
                    work.begin(f"every draft verified, real drafters: {chat.workload}")
                    trials += runner.compare(number, chat, groups, is_gated=False)
    except (SettingsError, ModelError, TemplateError) as fault:
        raise ArgumentsError(str(fault)) from None
    return trials, record


def _runner(
    arguments: argparse.Namespace, local: LocalEngine, meter: EnergyMeter, work: WorkProgress
) -> TrialRunner:
    options = RunOptions(arguments.max_tokens, arguments.seed, arguments.repeats)
    return TrialRunner(local, meter, options, lambda: work.advance(1))


def _settings(arguments: argparse.Namespace, max_draft_tokens: int) -> Settings:
    return Settings(
        model=str(arguments.model) if arguments.model else None,
        **draft_model.settings_of(arguments),
        max_rows=1,
        num_draft_tokens=max_draft_tokens,
        prefix_cache_bytes=0,
        # Step costs that another process measured earlier do not predict this run.
        calibration_file=None,
    )


def _chats(arguments: argparse.Namespace, prompts: Sequence[Chat] | None, local: LocalEngine) -> list[Chat]:
    if prompts is not None:
        return list(prompts)
    chats = []
    for name in arguments.workloads.split(","):
        requested = (arguments.prompt_tokens,) if arguments.prompt_tokens else None
        length = lengths_of(name, requested)[0]
        chats += make_chats(name, arguments.chats, arguments.seed, local.count_tokens, length)
    return chats


def _mixed(chats: Sequence[Chat], count: int) -> list[tuple[int, Chat]]:
    """Return count chats with their numbers, alternating between workloads."""
    groups: dict[str, list[tuple[int, Chat]]] = {}
    for number, chat in enumerate(chats):
        groups.setdefault(chat.workload, []).append((number, chat))
    turns = chain.from_iterable(zip_longest(*groups.values()))
    return [one for one in turns if one is not None][:count]
