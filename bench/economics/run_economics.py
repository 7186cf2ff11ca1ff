"""`reprise bench economics`: when drafting pays with this model on this machine."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain, zip_longest

from rich.console import Console

from bench import argument_types, document, draft_model, outputs
from bench.decode.progress import WorkProgress
from bench.economics.controlled import forced_costs
from bench.economics.report import Meter, print_report, rows, section
from bench.economics.trials import LEVELS, DraftQuery, Laboratory, Trial
from bench.energy import EnergyMeter
from bench.errors import ArgumentsError
from bench.local_engine import LocalEngine
from bench.workloads import WORKLOADS, Chat, lengths_of, make_chats, own_chats
from config.setting import SettingsError
from config.settings import Settings
from engine.model.loading import ModelError
from engine.model.tokenizer import TemplateError
from engine.request import DraftType

SUMMARY = "Fit when drafting pays, and say which draft type and length to use here."
TYPES: tuple[DraftType, ...] = ("suffix", "ngram-mod", "ngram-simple")
MODEL: DraftType = "draft-model"
DEFAULT_LENGTHS = (1, 2, 4, 8, 16)
DEFAULT_WORKLOADS = "edits,passage,free"
_WIDTH = 120
_LONGEST = 255


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give the parser what `reprise bench economics` takes."""
    parser.description = (
        "When does drafting pay? A drafter that knows the answer is made wrong at chosen rates, so that "
        "every acceptance is seen at every draft length; fitted to that are tokens/s = a + b * acceptance, "
        "and the acceptance at which drafts break even. Then the real drafters are measured on chats, every "
        "draft verified, and beside them --draft-type auto as a server has it, which leaves out drafts that "
        "do not pay. Every run stands between plain ones of the same chat. Ends with advice in words. Times "
        "are of decoding, from the end of the prompt on; drafters know nothing but the chat itself."
    )
    add = parser.add_argument
    add("--model", type=argument_types.model_folder, metavar="DIR", help="Default: the bundled one.")
    draft_model.add_arguments(parser, "Measure this one as well.")
    add("--workloads", default=DEFAULT_WORKLOADS, metavar="NAMES",
        help=f"Of {', '.join(WORKLOADS)}. Default: {DEFAULT_WORKLOADS}.")  # fmt: skip
    add("--prompts", type=argument_types.input_file, metavar="FILE",
        help='Your own chats instead: JSON lines of chat requests, {"messages": [...]}.')  # fmt: skip
    add("--prompt-tokens", type=argument_types.count, metavar="N",
        help="How long prompts are, where a workload lets one choose. Default: its shortest.")  # fmt: skip
    add("--chats", type=argument_types.count, default=6, metavar="N",
        help="Of each workload, and as many for controlled acceptance; 3 or more for intervals. "
        "Default: 6.")  # fmt: skip
    add("--num-draft-tokens", type=argument_types.levels, default=DEFAULT_LENGTHS, metavar="K,L",
        help="Draft lengths. Default: 1,2,4,8,16.")  # fmt: skip
    add("--draft-types", default=",".join(TYPES), metavar="NAMES",
        help=f"Default: {','.join(TYPES)}, and draft-model with --draft-model.")  # fmt: skip
    add("--max-tokens", type=argument_types.count, default=96, metavar="N",
        help="Of each answer. Default: 96.")  # fmt: skip
    add("--repeats", type=argument_types.count, default=1, metavar="N",
        help="Run everything so often and keep the quickest, on a machine that is not idle. "
        "Default: 1.")  # fmt: skip
    add("--seed", type=int, default=1, metavar="N", help="Makes the chats. Default: 1.")
    outputs.add_arguments(parser, "Write a row for each run.")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, and return the exit status: 2 if the arguments do not fit, 1 without a measurement."""
    try:
        groups = _asks(arguments)
        prompts = own_chats(arguments.prompts, arguments.workloads.split(","))
    except (OSError, ValueError) as fault:
        print(f"reprise bench economics: {fault}", file=sys.stderr)
        return 2
    console = outputs.make_console(_WIDTH)
    try:
        with EnergyMeter() as meter:
            trials, record = _measure(arguments, groups, prompts, meter)
            told = Meter(meter.source, meter.reason)
    except (ArgumentsError, RuntimeError) as fault:
        # The latter: an answer failed, and says why.
        print(f"reprise bench economics: {fault}", file=sys.stderr)
        return 2 if isinstance(fault, ArgumentsError) else 1
    if not trials:
        print("reprise bench economics: every answer was too short to be timed", file=sys.stderr)
        return 1
    curve = {int(one["width"]) - 1: one["seconds"] for one in record["cost_curve"]}
    found = section(trials, curve, told)
    record["economics"] = found
    print_report(console, found)
    console.print(", ".join(f"{key} {value}" for key, value in record["machine"].items()), highlight=False)
    outputs.write(arguments, record, rows(trials))
    return 0


def _asks(arguments: argparse.Namespace) -> list[list[DraftQuery]]:
    """What is asked of each chat, grouped by draft length. Raises ValueError."""
    known: dict[str, DraftType] = {name: name for name in (*TYPES, MODEL)}
    names = arguments.draft_types.split(",")
    for name in names:
        if name not in known:
            raise ValueError(f"--draft-types: {name} is none of {', '.join(known)}")
    if MODEL in names and not arguments.draft_model:
        raise ValueError(f"--draft-types: {MODEL} needs a model: name one with --draft-model")
    if arguments.draft_model and MODEL not in names:
        names.append(MODEL)
    if max(arguments.num_draft_tokens) > _LONGEST:
        raise ValueError(f"--num-draft-tokens: {max(arguments.num_draft_tokens)} is above {_LONGEST}")
    return [[(known[name], length) for name in names] for length in sorted(arguments.num_draft_tokens)]


def _measure(
    arguments: argparse.Namespace,
    groups: Sequence[Sequence[DraftQuery]],
    prompts: Sequence[Chat] | None,
    meter: EnergyMeter,
) -> tuple[list[Trial], document.Document]:
    """All trials, and a document about what they were run on.

    One engine as a server has it, whose costs were measured a moment before; then one that is forced.
    """
    lengths = [group[0][1] for group in groups]
    trials: list[Trial] = []
    try:
        # How much there is to do is known once there are chats, and told up to the end.
        with ExitStack() as told:
            with LocalEngine(_settings(arguments, Settings().num_draft_tokens)) as local:
                chats = _chats(arguments, prompts, local)
                record = document.new_document(
                    document.command_line(arguments), local.engine.info, local.engine.costs
                )
                controlled = _mixed(chats, arguments.chats)
                drafts: list[list[DraftQuery]] = [[("auto", local.engine.settings.num_draft_tokens)]]
                num_runs = len(chats) * 3 + len(chats) * (1 + sum(len(group) + 1 for group in groups))
                num_runs += len(lengths) * (3 + len(controlled) * (2 + len(LEVELS)))
                work = told.enter_context(WorkProgress(Console(stderr=True), num_runs))
                laboratory = _laboratory(arguments, local, meter, work)
                for number, chat in enumerate(chats):
                    work.begin(f"auto, as a server has it: {chat.workload}")
                    trials += laboratory.compare(number, chat, drafts, is_gated=True)
            with LocalEngine(_settings(arguments, max(lengths)), forced_costs(max(lengths))) as local:
                laboratory = _laboratory(arguments, local, meter, work)
                work.begin("every draft verified: warming up")
                laboratory.warm_up(chats[0], lengths)
                for number, chat in controlled:
                    work.begin(f"every draft verified, at chosen acceptances: {chat.workload}")
                    for length in lengths:
                        trials += laboratory.control(number, chat, length)
                for number, chat in enumerate(chats):
                    work.begin(f"every draft verified, real drafters: {chat.workload}")
                    trials += laboratory.compare(number, chat, groups, is_gated=False)
    except (SettingsError, ModelError, TemplateError) as fault:
        raise ArgumentsError(str(fault)) from None
    return trials, record


def _laboratory(
    arguments: argparse.Namespace, local: LocalEngine, meter: EnergyMeter, work: WorkProgress
) -> Laboratory:
    a = arguments
    return Laboratory(local, meter, a.max_tokens, a.seed, lambda: work.advance(1), a.repeats)


def _settings(arguments: argparse.Namespace, longest: int) -> Settings:
    return Settings(
        model=str(arguments.model) if arguments.model else None,
        **draft_model.settings_of(arguments),
        max_rows=1,
        num_draft_tokens=longest,
        prefix_cache_bytes=0,
        # What others measured at another time is no prediction for now.
        calibration_file=None,
    )


def _chats(arguments: argparse.Namespace, prompts: Sequence[Chat] | None, local: LocalEngine) -> list[Chat]:
    if prompts is not None:
        return list(prompts)
    found = []
    for name in arguments.workloads.split(","):
        asked = (arguments.prompt_tokens,) if arguments.prompt_tokens else None
        length = lengths_of(name, asked)[0]
        found += make_chats(name, arguments.chats, arguments.seed, local.count_tokens, length)
    return found


def _mixed(chats: Sequence[Chat], count: int) -> list[tuple[int, Chat]]:
    """So many chats, with their numbers: one of each workload, then the next of each."""
    groups: dict[str, list[tuple[int, Chat]]] = {}
    for number, chat in enumerate(chats):
        groups.setdefault(chat.workload, []).append((number, chat))
    turns = chain.from_iterable(zip_longest(*groups.values()))
    return [one for one in turns if one is not None][:count]
