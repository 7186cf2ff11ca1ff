"""`reprise run`: chat with a model in the terminal, on a running server or one started for the chat."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reprise.cli.arguments import UsageError
from reprise.cli.client import DEFAULT_URL, NoServerError, RefusedError, Server, add_server_arguments, started
from reprise.config.model_settings import BUNDLED_NAME

if TYPE_CHECKING:
    from rich.console import Console

HELP = "Chat with a model in the terminal, or ask it one thing."

_COMMANDS = {
    "/new": "forget the conversation and begin another",
    "/retry": "ask the last question again",
    "/system TEXT": "tell the model how to behave; begins another conversation",
    "/help": "show these commands",
    "/bye": "leave; so does Ctrl-D",
}
_MULTILINE = '"""'
_HINT = f"/help shows commands, {_MULTILINE} begins and ends a text of several lines, Ctrl-C stops an answer."

Message = dict[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, a question, --system and the server's address and key to the parser."""
    parser.add_argument(
        "model", nargs="?", metavar="MODEL",
        help="A name that the server has. Without a server that has it, a server is started for this chat, "
        "and MODEL is all that `reprise serve` takes. Default: the server's own",
    )  # fmt: skip
    parser.add_argument(
        "question", nargs="*", metavar="QUESTION",
        help="Ask this and leave. Without it, and with a pipe in place of a terminal, what comes through it.",
    )  # fmt: skip
    parser.add_argument("--system", metavar="TEXT", help="How the model is to behave. Default: nothing")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="Most tokens of an answer.")
    parser.add_argument("--temperature", type=float, metavar="N", help="Default: the model's own")
    add_server_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Chat until the end; return 0, or 1 if a single question was not answered."""
    # Imported here so that --help is answered at once.
    from rich.console import Console

    console, told = Console(highlight=False), Console(stderr=True, highlight=False)
    # What has spaces is a question, not a name.
    if arguments.model and len(arguments.model.split()) > 1 and not Path(arguments.model).exists():
        arguments.question.insert(0, arguments.model)
        arguments.model = None
    question = " ".join(arguments.question)
    if not question and not sys.stdin.isatty():
        question = sys.stdin.read().strip()
        if not question:
            raise UsageError("nothing came through the pipe: there is no question to ask")
    with _server(arguments, told) as (server, card):
        chat = Chat(server, card["id"], arguments, console)
        if question:
            return 0 if chat.ask(question) else 1
        told.print(f"[bold]{card['id']}[/bold] at {server.url}. {_HINT}")
        if card["id"] == BUNDLED_NAME:
            told.print(
                "It is a demo: it copies, edits and looks things up in texts that you give it.", style="dim"
            )
        _talk(chat, told)
    return 0


class Chat:
    """A conversation. messages: all of it so far, the system message first."""

    def __init__(self, server: Server, model: str, arguments: argparse.Namespace, console: "Console") -> None:
        self._server = server
        self._console = console
        chosen = {"max_tokens": arguments.max_tokens, "temperature": arguments.temperature}
        self._body: dict[str, Any] = {"model": model, "stream": True, "return_progress": True}
        self._body |= {name: value for name, value in chosen.items() if value is not None}
        self.begin(arguments.system)

    def begin(self, system: str | None) -> None:
        """Begin another conversation. system: the text of its system message; None for no such message."""
        self.system = system
        self.messages: list[Message] = [{"role": "system", "content": system}] if system else []

    def retry(self) -> bool:
        """Ask the last question again; return whether there was one."""
        asked = [at for at, message in enumerate(self.messages) if message["role"] == "user"]
        if not asked:
            return False
        before = self.messages
        self.messages = kept = before[: asked[-1]]
        self.ask(before[asked[-1]]["content"])
        if self.messages is kept:
            # There is no other answer: the earlier one stays.
            self.messages = before
        return True

    def ask(self, question: str) -> bool:
        """Ask a question, and show the answer as it comes; return whether the answer came whole.

        The part of an answer before Ctrl-C stays in the conversation. A question that the server refuses, or
        that no server answers, does not.
        """
        from reprise.cli.screen import AnswerScreen, describe_timings

        messages = [*self.messages, {"role": "user", "content": question}]
        said, thought, reason, timings = "", "", None, None
        is_whole = False
        try:
            with AnswerScreen(self._console) as screen:
                for event in self._server.stream("/v1/chat/completions", self._body | {"messages": messages}):
                    if isinstance(event, str):
                        if "loading" in event:
                            screen.status(event)
                        continue
                    timings = event.get("timings", timings)
                    if progress := event.get("prompt_progress"):
                        share = progress["processed"] / max(1, progress["total"])
                        screen.status(f"reading the prompt, {100 * share:.0f} %")
                    for choice in event.get("choices", ()):
                        delta = choice.get("delta", {})
                        reason = choice.get("finish_reason") or reason
                        thought += delta.get("reasoning_content") or ""
                        screen.think(delta.get("reasoning_content") or "")
                        if text := delta.get("content") or "":
                            said += text
                            screen.write(text)
            is_whole = True
        except KeyboardInterrupt:
            self._tell("stopped")
        except (RefusedError, UsageError, OSError) as fault:
            self._tell(str(fault), "red")
        if is_whole or said:
            answer = {"role": "assistant", "content": said}
            self.messages = [*messages, answer | ({"reasoning_content": thought} if thought else {})]
        if is_whole and self._console.is_terminal:
            self._tell(describe_timings(timings, reason == "length"))
        return is_whole

    def _tell(self, text: str, style: str = "dim") -> None:
        from rich.console import Console

        if text:
            Console(stderr=True, highlight=False, markup=False).print(text, style=style)


@contextmanager
def _server(arguments: argparse.Namespace, told: "Console") -> Iterator[tuple[Server, dict[str, Any]]]:
    """Yield a server and its model: a running server that has the model, or one started here."""
    if found := _find(arguments, told):
        yield found
        return
    from reprise.server.banner import LoadingBar

    told.print(f"starting {arguments.model or 'the bundled model'} ...", style="dim", markup=False)
    with ExitStack() as stack:
        with LoadingBar(told) as bar:
            given = [_path(arguments.model)] if arguments.model else []
            server = stack.enter_context(started(given, bar.advance))
        yield server, server.model(None)


def _find(arguments: argparse.Namespace, told: "Console") -> tuple[Server, dict[str, Any]] | None:
    """Return the running server and its model; None without such a server or model."""
    server, model = Server.of(arguments), arguments.model
    try:
        return server, server.model(model)
    except NoServerError:
        if arguments.url != DEFAULT_URL:
            raise
    except RefusedError as fault:
        if fault.status != 404:
            raise UsageError(str(fault)) from None
        told.print(f"The server at {server.url} has no model {model}.", style="dim", markup=False)
    return None


def _path(model: str) -> str:
    return str(Path(model).absolute()) if Path(model).exists() else model


def _talk(chat: Chat, told: "Console") -> None:
    """Read questions and commands until the end of the input."""
    with suppress(ImportError):
        import readline

        # A text of several lines that is pasted is one question.
        readline.parse_and_bind("set enable-bracketed-paste on")
    while (asked := _read(told)) is not None:
        word, _, rest = asked.partition(" ")
        if word in ("/bye", "/exit", "/quit"):
            return
        if word == "/new":
            chat.begin(chat.system)
        elif word == "/system":
            chat.begin(rest.strip() or None)
        elif word == "/retry":
            if not chat.retry():
                told.print("Nothing has been asked yet.", style="dim")
        elif word == "/help" or (word.startswith("/") and "/" not in word[1:] and not rest):
            for name, effect in _COMMANDS.items():
                told.print(f"  {name:<14}{effect}")
            told.print(f"  {_MULTILINE:<14}begins and ends a text of several lines")
        elif asked.strip():
            chat.ask(asked)


def _read(told: "Console") -> str | None:
    """Return the next question or command; None at the end of the input."""
    try:
        line = input(">>> ")
        if not line.lstrip().startswith(_MULTILINE):
            while line.endswith("\\"):
                line = f"{line[:-1]}\n{input('... ')}"
            return line
        text = line.lstrip()[len(_MULTILINE) :]
        while not text.rstrip().endswith(_MULTILINE):
            text += "\n" + input("... ")
        return text.rstrip()[: -len(_MULTILINE)].strip("\n")
    except EOFError:
        told.print()
        return None
    except KeyboardInterrupt:
        told.print("\nCtrl-D or /bye leaves.", style="dim")
        return ""
