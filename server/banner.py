"""What a person sees while the server starts: progress, then what is served, where, and how to try it."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from config.settings import Settings
from engine.request import ModelInfo

SHOW_PROGRESS_AFTER_S = 0.5


class LoadingBar:
    """A progress bar on standard error, if starting takes long enough and a person is watching.

    console: what stands in for standard error. show_after_s: how long is long enough.
    """

    def __init__(self, console: Console | None = None, show_after_s: float = SHOW_PROGRESS_AFTER_S) -> None:
        console = console or Console(stderr=True)
        self._is_watched = console.is_terminal
        self._show_after_s = show_after_s
        self._progress = Progress(
            # The name of a model may look like markup.
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._what = ""
        self._began_s = time.perf_counter()

    def __enter__(self) -> "LoadingBar":
        return self

    def advance(self, what: str, share: float) -> None:
        """Show what is being done, and the share of it that is done, in [0, 1].

        Called on the engine's thread. Another thing than before takes its bar and begins anew.
        """
        if not self._is_watched or time.perf_counter() - self._began_s < self._show_after_s:
            return
        if self._task is None or what != self._what:
            if self._task is None:
                self._progress.start()
            else:
                self._progress.remove_task(self._task)
            self._what, self._task = what, self._progress.add_task(what, total=1.0)
        self._progress.update(self._task, completed=share)

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def describe_drafts(settings: Settings, can_draft: bool, strategy: str | None = None) -> str:
    """Where drafts come from, and where it is known from what they cost.

    can_draft: whether anything can be drafted for the model at all. strategy: see ModelInfo.draft_strategy.
    """
    if not can_draft:
        return "none, the model allows none"
    model = f" with {settings.draft_model}" if settings.draft_model else ""
    if strategy not in (None, "none"):
        model += f" (translated: {strategy})"
    file = settings.calibration_file
    costs = f"costs from {file}" if file else "costs measured at this start, kept nowhere"
    return f"{settings.draft_type}{model}, {costs}"


def banner(
    info: ModelInfo,
    names: tuple[str, ...],
    address: str,
    drafts: str,
    has_chat_template: bool,
    needs_key: bool,
) -> str:
    """What is served, where, and a command that can be pasted to try it.

    drafts: see describe_drafts(). needs_key: clients must send a key, which is not shown.
    """
    kind = f"{info.architecture}, {_parameters(info.num_parameters)}, {info.dtype}"
    machine = f", {_bytes(info.memory_bytes)} in the machine" if info.memory_bytes else ""
    rows = {
        "model": f"{', '.join(names)} ({kind})",
        "device": info.device,
        "memory": f"{_bytes(info.weight_bytes)} of weights{machine}",
        "context": f"{info.context_tokens} tokens",
        "drafts": drafts,
        "loaded": f"in {info.loaded_s:.1f} s",
        "address": address,
    }
    table = "\n".join(f"  {name:<9}{value}" for name, value in rows.items())
    path, body = (
        ("/v1/chat/completions", '{"messages": [{"role": "user", "content": "Hello!"}]}')
        if has_chat_template
        else ("/v1/completions", '{"prompt": "Once upon a time", "max_tokens": 50}')
    )
    key = "    -H 'Authorization: Bearer YOUR-KEY' \\\n" if needs_key else ""
    return (
        f"\nReprise is ready. Ctrl-C stops it.\n\n{table}\n\nTry it:\n\n"
        f"  curl {address}{path} \\\n"
        f"    -H 'Content-Type: application/json' \\\n{key}"
        f"    -d '{body}'\n"
    )


def _parameters(count: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= size:
            return f"{count / size:.1f}{unit} parameters"
    return f"{count} parameters"


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
