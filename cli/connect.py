"""`reprise connect`: print a coding agent's settings for a running server, or merge them into its files."""

import argparse
import sys
from pathlib import Path
from typing import Any

from reprise.cli.arguments import UsageError
from reprise.cli.client import DEFAULT_URL, RefusedError, Server, add_server_arguments
from reprise.config.agents import config_file
from reprise.config.agents.config_file import (
    ConfigFileError,
    difference,
    has_backup,
    locate,
    read,
    render,
    shown,
)
from reprise.config.agents.known import AGENTS, AgentFile, ServedModel, explain_context, explain_wait
from reprise.config.model_settings import BUNDLED_NAME

HELP = "Print a coding agent's settings for a running server, or write them."
_NO_MODEL = ServedModel(DEFAULT_URL, "none", 0, False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the agent's name and the server's address and key to the parser."""
    parser.add_argument("agent", choices=AGENTS, help="The agent: %(choices)s.", metavar="AGENT")
    add_server_arguments(parser)
    parser.add_argument(
        "--model", "--served-model-name", metavar="NAME",
        help="Model for the agent: a name that the server lists, or answers to, such as claude-sonnet-4-5 "
        "where an agent insists on one (`reprise serve --served-model-name`). Default: the first that it "
        "lists",
    )  # fmt: skip
    changes = parser.add_mutually_exclusive_group()
    changes.add_argument(
        "--write", action="store_true",
        help="Merge the settings into the agent's files, after showing the difference. Each is kept as it "
        "was, beside it, with .before-reprise at the end of its name.",
    )  # fmt: skip
    changes.add_argument(
        "--undo", action="store_true",
        help="Put the agent's files back as they were before --write. What others have changed since is kept "
        "beside them, with .before-undo at the end of its name.",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print an agent's settings, write them, or undo that; return 0, or 1 if there is nothing to do."""
    if arguments.undo:
        return 0 if _undo(AGENTS[arguments.agent](_NO_MODEL).files) else 1
    model = _find_model(Server.of(arguments), arguments.model)
    if model.name == BUNDLED_NAME:
        print(
            f"reprise: {BUNDLED_NAME} is a demo, too small for an agent's work; `reprise doctor` proposes a "
            "model for this machine",
            file=sys.stderr,
        )
    if warning := explain_context(arguments.agent, model):
        print(f"reprise: {warning}", file=sys.stderr)
    elif told := explain_wait(arguments.agent, model, _recent_requests(Server.of(arguments))):
        print(f"reprise: {told}", file=sys.stderr)
    agent = AGENTS[arguments.agent](model)
    if arguments.write:
        try:
            _write(agent.files)
        except ConfigFileError as fault:
            raise UsageError(str(fault)) from None
    else:
        for file in agent.files:
            print(f"# {shown(locate(file))}\n{render(file, None)}")
    for line in agent.notes:
        print(line)
    return 1 if arguments.write and not agent.files else 0


def _find_model(server: Server, name: str | None) -> ServedModel:
    """Return the server's model of this name, or else its first model.

    Raises UsageError if no Reprise server answers there, or if it refuses the key or the name.
    """
    try:
        card = server.model(name)
        if card["context_length"] is None:
            raise UsageError(f"the context of {card['id']} is not known yet: run `reprise load {card['id']}`")
        return ServedModel(server.url, card["id"], card["context_length"], card["tools"], server.key)
    except RefusedError as error:
        if error.status == 404 and name is not None:
            raise UsageError(
                f"the server at {server.url} has no model {name} (`reprise ps --all` lists its own): start "
                f"it with --served-model-name {name} to have it answer to this name"
            ) from None
        raise UsageError(str(error)) from None


def _recent_requests(server: Server) -> list[dict[str, Any]]:
    """Return the server's last requests; none if it does not tell them."""
    try:
        found: list[dict[str, Any]] = server.get("/v1/requests")["data"]
    except RefusedError:
        return []
    return found


def _write(files: tuple[AgentFile, ...]) -> None:
    paths = [locate(file) for file in files]
    held = [read(path) for path in paths]
    # All are rendered and kept before any is written: one that is refused leaves the others as they were.
    texts = [render(file, before) for file, before in zip(files, held, strict=True)]
    changes = [difference(*change) for change in zip(paths, held, texts, strict=True)]
    news = [new for new, change in zip(zip(paths, held, texts, strict=True), changes, strict=True) if change]
    kept = {path: before for path, before, _ in news if not has_backup(path)}
    try:
        for new in news:
            config_file.keep(*new)
        for path, text, change in zip(paths, texts, changes, strict=True):
            if change:
                print(change)
                config_file.write(path, text)
            print(f"{path} is {'written' if change else 'up to date'}")
    except ConfigFileError:
        # Else a later --undo would put back this text, whatever the file holds by then.
        for path, before in kept.items():
            if read(path) == before:
                config_file.forget(path)
        raise
    if any(has_backup(path) for path in paths):
        print("to put back what was there before, run it with --undo in place of --write")


def _undo(files: tuple[AgentFile, ...]) -> bool:
    """Restore files and print the changes; return whether there were any."""
    # Also where --write found it before a variable or another file moved it.
    places = ((path, file) for file in files for path in (locate(file), Path.home() / file.path))
    paths = {path: file for path, file in places if has_backup(path)}
    try:
        for path, file in paths.items():
            held = read(path) or ""
            copy = config_file.undo(file, path)
            print(difference(path, held, read(path) or ""))
            is_there = path.exists()
            print(f"{path} is {'as it was before' if is_there else 'deleted: there was none before'}")
            if copy:
                print(f"{copy} holds what it held: it was changed after --write")
    except ConfigFileError as fault:
        raise UsageError(str(fault)) from None
    if not paths:
        print("there is nothing to undo: --write has changed no file that is still to be restored")
    return bool(paths)
