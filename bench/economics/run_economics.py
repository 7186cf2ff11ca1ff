"""`reprise bench economics`: measure when drafting pays for this model on this machine."""

import argparse
from collections.abc import Sequence
from itertools import chain, zip_longest

from bench import document, options, outputs
from bench.decode.answering import Answering
from bench.economics.controlled import forced_costs
from bench.economics.report import EnergySource, print_report, rows, section
from bench.economics.trials import LEVELS, DraftSetting, Trial, TrialRunner
from bench.energy import EnergyMeter
from bench.errors import BenchError
from bench.local_engine import LocalEngine
from bench.workloads import Chat, lengths_of, make_chats, own_chats
from config.settings import Settings
from engine.request import DraftType

SUMMARY = "Measure when drafting pays, and advise which draft type and length to use."
TYPES: tuple[DraftType, ...] = ("suffix", "ngram-mod", "ngram-simple")
MODEL: DraftType = "draft-model"
_WIDTH = 120


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
    options.add(
        parser, model=None, draft_model=None, workloads=("edits", "passage", "free"), prompts=None,
        prompt_tokens=None, num_draft_tokens=(1, 2, 4, 8, 16), draft_types=TYPES, max_tokens=96,
        repeats=1, seed=1,
        **options.OUTPUTS,
    )  # fmt: skip
    parser.add_argument(
        "--chats", type=options.count, default=6, metavar="N",
        help="Chats of each workload, and as many for controlled acceptance; intervals need at least 3. "
        "Default: 6.",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure and print. Return 2 if the arguments cannot be combined, 1 if nothing could be measured."""
    return outputs.run_command("reprise bench economics", _run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.draft_model and MODEL not in arguments.draft_types:
        arguments.draft_types += (MODEL,)
    options.check_drafts(arguments, (*TYPES, MODEL))
    groups: list[list[DraftSetting]] = [
        [(name, length) for name in arguments.draft_types] for length in sorted(arguments.num_draft_tokens)
    ]
    prompts = own_chats(arguments.prompts, arguments.workloads)
    with EnergyMeter() as meter:
        trials, record = _measure(arguments, groups, prompts, meter)
        energy = EnergySource(meter.source, meter.reason)
    if not trials:
        raise BenchError("every answer was too short to measure")
    curve = {int(one["width"]) - 1: one["seconds"] for one in record["cost_curve"]}
    record["economics"] = section(trials, curve, energy)
    console = outputs.make_console(_WIDTH)
    print_report(console, record["economics"])
    outputs.print_machine(console, record)
    outputs.write(arguments, record, rows(trials))
    return 0


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
    with outputs.Work() as work:

        def runner(local: LocalEngine) -> TrialRunner:
            answering = Answering(local, arguments.max_tokens, arguments.seed, meter)
            return TrialRunner(answering, arguments.repeats, work.advance)

        with LocalEngine(_settings(arguments, Settings().num_draft_tokens)) as local:
            chats = _chats(arguments, prompts, local)
            record = document.new_document(arguments, local.engine.info, local.engine.costs)
            controlled = _mixed(chats, arguments.chats)
            drafts: list[list[DraftSetting]] = [[("auto", local.engine.settings.num_draft_tokens)]]
            work.weight = len(chats) * (4 + sum(len(group) + 1 for group in groups))
            work.weight += len(lengths) * (3 + len(controlled) * (2 + len(LEVELS)))
            for number, chat in enumerate(chats):
                work.begin(f"auto, as on a server: {chat.workload}")
                trials += runner(local).compare(number, chat, drafts, is_gated=True)
        with LocalEngine(_settings(arguments, max(lengths)), forced_costs(max(lengths))) as local:
            work.begin("every draft verified: warming up")
            runner(local).warm_up(chats[0], lengths)
            for number, chat in controlled:
                work.begin(f"every draft verified, controlled acceptance: {chat.workload}")
                for length in lengths:
                    trials += runner(local).control(number, chat, length)
            for number, chat in enumerate(chats):
                work.begin(f"every draft verified, real drafters: {chat.workload}")
                trials += runner(local).compare(number, chat, groups, is_gated=False)
    return trials, record


def _settings(arguments: argparse.Namespace, max_draft_tokens: int) -> Settings:
    return Settings(
        model=str(arguments.model) if arguments.model else None,
        **options.draft_model_settings(arguments),
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
    for name in arguments.workloads:
        length = lengths_of(name, arguments.prompt_tokens)[0]
        chats += make_chats(name, arguments.chats, arguments.seed, local.count_tokens, length)
    return chats


def _mixed(chats: Sequence[Chat], count: int) -> list[tuple[int, Chat]]:
    """Return count chats with their numbers, alternating between workloads."""
    groups: dict[str, list[tuple[int, Chat]]] = {}
    for number, chat in enumerate(chats):
        groups.setdefault(chat.workload, []).append((number, chat))
    turns = chain.from_iterable(zip_longest(*groups.values()))
    return [one for one in turns if one is not None][:count]
