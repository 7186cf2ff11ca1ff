"""What a person sees while the server starts: progress, then what is served, where, and how to try it."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from engine.request import ModelInfo

SHOW_PROGRESS_AFTER_S = 0.5


class LoadingBar:
    """A progress bar on standard error, if loading takes long enough and a person is watching."""

    def __init__(self, source: str) -> None:
        """source: what is being loaded."""
        console = Console(stderr=True)
        self._is_watched = console.is_terminal
        self._progress = Progress(
            TextColumn("Loading {task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._source = source
        self._task: TaskID | None = None
        self._began_s = time.perf_counter()

    def __enter__(self) -> "LoadingBar":
        return self

    def advance(self, fraction: float) -> None:
        """Show how much is done, in [0, 1]. Called on the engine's thread."""
        if self._task is None:
            if not self._is_watched or time.perf_counter() - self._began_s < SHOW_PROGRESS_AFTER_S:
                return
            self._progress.start()
            self._task = self._progress.add_task(self._source, total=1.0)
        self._progress.update(self._task, completed=fraction)

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def banner(info: ModelInfo, names: tuple[str, ...], address: str, has_chat_template: bool) -> str:
    """What is served, where, and a command that can be pasted to try it."""
    kind = f"{info.architecture}, {_parameters(info.num_parameters)}, {info.dtype}"
    machine = f", {_bytes(info.memory_bytes)} in the machine" if info.memory_bytes else ""
    rows = {
        "model": f"{', '.join(names)} ({kind})",
        "device": info.device,
        "memory": f"{_bytes(info.weight_bytes)} of weights{machine}",
        "context": f"{info.context_tokens} tokens",
        "loaded": f"in {info.loaded_s:.1f} s",
        "address": address,
    }
    table = "\n".join(f"  {name:<9}{value}" for name, value in rows.items())
    path, body = (
        ("/v1/chat/completions", '{"messages": [{"role": "user", "content": "Hello!"}]}')
        if has_chat_template
        else ("/v1/completions", '{"prompt": "Once upon a time", "max_tokens": 50}')
    )
    return (
        f"\nReprise is ready. Ctrl-C stops it.\n\n{table}\n\nTry it:\n\n"
        f"  curl {address}{path} \\\n"
        f"    -H 'Content-Type: application/json' \\\n"
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
