"""`reprise bench`: the measurements that the README quotes."""

import argparse

HELP = "Measure servers under load, or decoding with drafts against decoding without."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give the parser the benchmarks, and each of them its own arguments."""
    # Here, so that other commands do not load the workloads.
    from bench import decode, turns
    from bench.economics import command as economics
    from bench.page import command as report
    from bench.peers import command as peers
    from bench.replay import command as replay
    from bench.serve import add_arguments as add_serve_arguments
    from bench.serve import run as run_serve
    from bench.sweep import command as sweep
    from bench.workloads import command as workloads

    benchmarks = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    own = benchmarks.add_parser(
        "serve", help="Load a server with chats and report latency and throughput.", allow_abbrev=False
    )
    add_serve_arguments(own)
    own.set_defaults(run=run_serve)
    own = benchmarks.add_parser(
        "decode",
        help=decode.SUMMARY,
        allow_abbrev=False,
    )
    decode.add_arguments(own)
    own.set_defaults(run=decode.run)
    own = benchmarks.add_parser(
        "turns", help="Time to the first token of each turn of a long chat.", allow_abbrev=False
    )
    turns.add_arguments(own)
    own.set_defaults(run=turns.run)
    own = benchmarks.add_parser("economics", help=economics.SUMMARY, allow_abbrev=False)
    economics.add_arguments(own)
    own.set_defaults(run=economics.run)
    own = benchmarks.add_parser("peers", help=peers.SUMMARY, allow_abbrev=False)
    peers.add_arguments(own)
    own.set_defaults(run=peers.run)
    own = benchmarks.add_parser("sweep", help=sweep.SUMMARY, allow_abbrev=False)
    sweep.add_arguments(own)
    own.set_defaults(run=sweep.run)
    own = benchmarks.add_parser("replay", help=replay.SUMMARY, allow_abbrev=False)
    replay.add_arguments(own)
    own.set_defaults(run=replay.run)
    own = benchmarks.add_parser(
        "report", help="Draw what benchmarks wrote with --json as one HTML page.", allow_abbrev=False
    )
    report.add_arguments(own)
    own.set_defaults(run=report.run)
    own = benchmarks.add_parser("workloads", help=workloads.SUMMARY, allow_abbrev=False)
    workloads.add_arguments(own)
    own.set_defaults(run=workloads.run)
