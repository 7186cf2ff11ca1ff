"""`reprise connect`: print a coding agent's settings for a running server, or merge them into its files."""

import argparse
from pathlib import Path

from cli.agents.config_file import difference, read, render, write
from cli.agents.known import AGENTS, AgentFile
from cli.agents.served_model import find_model

HELP = "Print a coding agent's settings for a running server, or write them."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the agent's name and the server's address and key to the parser."""
    parser.add_argument("agent", choices=AGENTS, help="The agent: %(choices)s.", metavar="AGENT")
    parser.add_argument(
        "--url", default="http://127.0.0.1:8000", help="Address of the server. Default: %(default)s"
    )
    parser.add_argument("--api-key", metavar="KEY", help="Key that the server wants. Default: none")
    parser.add_argument(
        "--write",
        action="store_true",
        help="Merge the settings into the agent's files, after showing the difference.",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the settings of the agent, or write them; return 0, or 1 if it has no file to write."""
    agent = AGENTS[arguments.agent](find_model(arguments.url, arguments.api_key))
    if arguments.write:
        _write(agent.files)
    else:
        for file in agent.files:
            print(f"# ~/{file.path}\n{render(file, None)}")
    for line in agent.notes:
        print(line)
    return 1 if arguments.write and not agent.files else 0


def _write(files: tuple[AgentFile, ...]) -> None:
    paths = [Path.home() / file.path for file in files]
    held = [read(path) for path in paths]
    # All are rendered before any is written: one that is refused leaves the others as they were.
    texts = [render(file, before) for file, before in zip(files, held, strict=True)]
    for path, before, text in zip(paths, held, texts, strict=True):
        changes = difference(path, before, text)
        if changes:
            print(changes)
            write(path, text)
        print(f"{path} is {'written' if changes else 'up to date'}")
