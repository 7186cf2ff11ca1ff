"""`reprise bench`: the benchmarks that every published figure comes from."""

import argparse

HELP = "Run a benchmark, such as a server under load, or decoding with and without drafts."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one subcommand per benchmark, each with its own arguments."""
    # Imported here so that other commands do not load the workloads.
    from bench import decode, run_all, turns
    from bench.economics import run_economics as economics
    from bench.page import run_page as report
    from bench.replay import run_replay as replay
    from bench.serving import run_peers as peers
    from bench.serving import run_serve as serve
    from bench.sweep import run_sweep as sweep
    from bench.translation import run_translation as translation
    from bench.workloads import run_workloads as workloads

    commands = {
        "all": (run_all, run_all.SUMMARY),
        "serve": (serve, serve.SUMMARY),
        "decode": (decode, decode.SUMMARY),
        "turns": (turns, "Measure the time to the first token in each turn of a long chat."),
        "economics": (economics, economics.SUMMARY),
        "translation": (translation, translation.SUMMARY),
        "peers": (peers, peers.SUMMARY),
        "sweep": (sweep, sweep.SUMMARY),
        "replay": (replay, replay.SUMMARY),
        "report": (report, "Draw the --json results of other benchmarks as one HTML page."),
        "workloads": (workloads, workloads.SUMMARY),
    }
    benchmarks = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    for name, (command, summary) in commands.items():
        own = benchmarks.add_parser(name, help=summary, allow_abbrev=False)
        command.add_arguments(own)
        own.set_defaults(run=command.run)
