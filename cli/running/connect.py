"""`reprise connect`: print a coding agent's settings for a running server, or merge them into its files."""

import argparse
import json
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote

from cli.arguments import UsageError
from config.agents.config_file import ConfigFileError, difference, read, render, write
from config.agents.known import AGENTS, AgentFile
from config.agents.served_model import ServedModel

HELP = "Print a coding agent's settings for a running server, or write them."
_PATIENCE_S = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the agent's name and the server's address and key to the parser."""
    parser.add_argument("agent", choices=AGENTS, help="The agent: %(choices)s.", metavar="AGENT")
    parser.add_argument(
        "--url", default="http://127.0.0.1:8000", help="Address of the server. Default: %(default)s"
    )
    parser.add_argument("--api-key", metavar="KEY", help="Key that the server wants. Default: none")
    parser.add_argument(
        "--served-model-name",
        metavar="NAME",
        help="Name by which the agent asks for the model, such as claude-sonnet-4-5 where it insists on one. "
        "The server must answer to it. Default: the first name that it lists",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="Merge the settings into the agent's files, after showing the difference.",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the settings of the agent, or write them; return 0, or 1 if it has no file to write."""
    model = _find_model(arguments.url, arguments.api_key, arguments.served_model_name)
    agent = AGENTS[arguments.agent](model)
    if arguments.write:
        try:
            _write(agent.files)
        except ConfigFileError as fault:
            raise UsageError(str(fault)) from None
    else:
        for file in agent.files:
            print(f"# ~/{file.path}\n{render(file, None)}")
    for line in agent.notes:
        print(line)
    return 1 if arguments.write and not agent.files else 0


def _find_model(url: str, key: str | None, name: str | None) -> ServedModel:
    """Return the model that the server has under a name; without one, the first that it lists.

    url: with or without /v1 at the end.
    Raises UsageError if no Reprise server answers there, or if it refuses the key or the name.
    """
    url = url.rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--url is {url}; it must start with http:// or https://")
    path = "/v1/models" if name is None else f"/v1/models/{quote(name, safe='')}"
    request = urllib.request.Request(
        f"{url}{path}", headers={"Authorization": f"Bearer {key}"} if key else {}
    )
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as response:
            found = json.load(response)
        card = found["data"][0] if name is None else found
        return ServedModel(url, card["id"], card["context_length"], card["tools"], key)
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise UsageError(f"{url} wants an API key: pass --api-key") from None
        if error.code == 404 and name is not None:
            raise UsageError(
                f"the server at {url} has no model {name}: start it with --served-model-name {name}"
            ) from None
        raise UsageError(f"{url}{path} answers with status {error.code}") from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise UsageError(f"no server at {url} ({reason}): start `reprise serve`, or pass --url") from None
    except (ValueError, LookupError, TypeError):
        raise UsageError(f"{url}/v1/models does not answer as Reprise does") from None


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
