"""The output of a starting server for people: a progress bar, then the banner."""

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from reprise.config.model_settings import BUNDLED_NAME
from reprise.config.settings import Settings, costs_file
from reprise.engine.interface.embeddings import SPECIAL, Purpose
from reprise.engine.interface.models import ModelEntry, ModelInfo

if TYPE_CHECKING:
    from reprise.engine.text.tokenizer import Tokenizer

SHOW_PROGRESS_AFTER_S = 0.5

LEAST_SHARE = 0.02
"""Minimum share done before the remaining time is shown."""


class LoadingBar:
    """A progress bar on standard error, shown only on a terminal and only if starting takes a while.

    It shows the current part of the start and its remaining seconds (see Pace).

    console: replaces standard error. show_after_s: seconds until the bar is shown.
    is_watched: whether standard error is a terminal.
    """

    def __init__(self, console: Console | None = None, show_after_s: float = SHOW_PROGRESS_AFTER_S) -> None:
        console = console or Console(stderr=True)
        self.is_watched = console.is_terminal
        self._show_after_s = show_after_s
        self._pace = Pace()
        self._progress = Progress(
            # The task may name a model, and Rich could mistake a part of that name for markup.
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            _Left(self._pace),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._shown = ""
        self._start_s = time.perf_counter()

    def __enter__(self) -> "LoadingBar":
        return self

    def advance(self, what: str, share: float) -> None:
        """Show the current task and the share of it that is done, in [0, 1].

        Called on the engine's thread. A new task replaces the bar of the previous one.
        """
        if not self.is_watched:
            return
        now = time.perf_counter()
        self._pace.note(what, share, now)
        if now - self._start_s < self._show_after_s:
            return
        if self._task is None or what != self._shown:
            if self._task is None:
                self._progress.start()
            else:
                self._progress.remove_task(self._task)
            self._shown, self._task = what, self._progress.add_task(what, total=1.0)
        self._progress.update(self._task, completed=share)

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._progress.stop()


class Pace:
    """Estimates when the current part of a start will be done, from how fast its share done has grown."""

    def __init__(self) -> None:
        self._what = ""
        self._began: tuple[float, float] = (0.0, 0.0)
        self._last: tuple[float, float] = (0.0, 0.0)

    def note(self, what: str, share: float, now_s: float) -> None:
        """Record the share of a part that is done, in [0, 1], and the time now, in seconds.

        A lower share restarts the part, as when a load follows a download.
        """
        if what != self._what or share < self._last[0]:
            self._what, self._began = what, (share, now_s)
        self._last = share, now_s

    def left_s(self, now_s: float) -> float | None:
        """Estimate the seconds left in the current part of the start.

        Return None before LEAST_SHARE of it is done, and once it has taken longer than estimated.
        """
        done = self._last[0] - self._began[0]
        if done < LEAST_SHARE:
            return None
        left_s = (self._last[1] - self._began[1]) * (1 - self._last[0]) / done + self._last[1] - now_s
        return left_s if left_s >= 0 else None


class _Left(ProgressColumn):
    max_refresh = 0.5

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self._pace = pace

    def render(self, task: Task) -> Text:  # noqa: ARG002
        """See ProgressColumn."""
        left_s = self._pace.left_s(time.perf_counter())
        return Text("" if left_s is None else f"about {left_s:.0f} s left")


def describe_drafts(settings: Settings, can_draft: bool, info: ModelInfo) -> str:
    """Describe the source of drafts and, at log level debug, the source of the step costs.

    can_draft: whether drafting works for the model at all.
    """
    if not info.is_tried:
        return "later, once it was tried what this model can do, while nothing is asked"
    if not can_draft:
        return "off, this model does not support drafting"
    if settings.draft_type == "none":
        return "off (--draft-type none)"
    model = f" with {settings.draft_model}" if settings.draft_model else ""
    if info.head_described:
        model = f" with {info.head_described}{model and f' ({settings.draft_model})'}"
    if info.draft_strategy not in (None, "none"):
        model += f" (translated: {info.draft_strategy})"
    if settings.log_level != "debug":
        how = "where they save time" if settings.draft_type == "auto" else f"by {settings.draft_type}"
        return f"on, {how}{model}"
    file, home = str(costs_file()), str(Path.home())
    if file.startswith(f"{home}/"):
        file = f"~{file.removeprefix(home)}"
    return f"{settings.draft_type}{model}, step costs from {file}"


def _decoding(settings: Settings) -> str:
    if settings.wedlm_decoding == "off":
        return ""
    threshold = settings.wedlm_entropy_threshold
    how = "one by one" if threshold is None else f"entropy below {threshold:g}"
    window = f"window of {settings.wedlm_window_size}"
    return f"streaming ({window}, {how}): answers may differ from those of plain decoding"


def _sampling(settings: Settings, info: ModelInfo) -> str:
    known = info.sampling_defaults.known if settings.sampling_defaults == "model" else {}
    shown = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in known.items())
    return f"{shown} (generation_config.json)" if shown else "OpenAI's defaults"


MAX_NAMES = 8
"""Names of other models that the banner shows."""


def describe_models(others: Sequence[ModelEntry], settings: Settings) -> str:
    """Describe the models that requests may ask for besides the one that the server started with."""
    names = [
        f"{one.name} for {SPECIAL[one.purpose]}" if one.purpose in SPECIAL else one.name
        for one in others
        if not one.fault
    ]
    more = [f"and {len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else []
    how = "loaded when a request asks for them" if settings.allow_load else "loaded with --allow-load only"
    return f"{', '.join([*names[:MAX_NAMES], *more])} ({how})" if names else "none found"


_OTHER_TRIES: dict[Purpose, tuple[str, str]] = {
    "embed": ("/v1/embeddings", '{"input": "Hello!"}'),
    "rerank": ("/v1/rerank", '{"query": "Where is Rome?", "documents": ["In Italy.", "Once upon a time"]}'),
}
"""Path and body of the command to try, for models that generate nothing."""


def banner(
    info: ModelInfo, settings: Settings, address: str, tokenizer: "Tokenizer", drafts: str, others: str = ""
) -> str:
    """Return the banner: the model, the server's address and settings, and a curl command to try it.

    At log level debug it also has the facts that matter only when tuning the server.
    drafts, others: the texts of describe_drafts(), and of describe_models() if there are several.
    """
    is_verbose = settings.log_level == "debug"
    names = dict.fromkeys((info.name, *settings.served_model_name))
    size = f"{info.short_size} parameters"
    is_demo = info.name == BUNDLED_NAME and not is_verbose
    kind = f"a demo, {size}" if is_demo else f"{info.architecture}, {size}, {info.dtype}"
    machine = f", {_bytes(info.memory_bytes)} in this machine" if info.memory_bytes else ""
    generates = info.embedding is None
    is_generic = tokenizer.markers.is_generic
    of_text = {
        "sampling": _sampling(settings, info),
        "tools": "generic format: the chat template has none that is known" if is_generic else "",
        "exact": info.exact or "widths not tried; --exact and `reprise verify` find them",
    }
    loaded = {"loaded": f"in {info.loaded_s:.1f} s"}
    verbose = {"batch": info.batching, **(of_text if generates else {}), **loaded}
    rows = {
        "model": f"{', '.join(names)} ({kind})",
        "others": others,
        "device": info.device,
        "memory": f"{_bytes(info.weight_bytes)} for weights{machine}",
        "weights": info.weights_note,
        **{f"rank {rank}": held for rank, held in enumerate(info.ranks)},
        "context": f"{info.context_tokens:,} tokens"
        + ", of a conversation and its answer together" * generates,
        **(
            {"vectors": info.embedding.describe()}
            if info.embedding
            else {"decoding": _decoding(settings), "drafts": drafts, "not used": info.head_fault}
        ),
        "images": info.vision.describe() if info.vision else "",
        **(verbose if is_verbose else {}),
        "address": address,
    }
    table = "\n".join(f"  {name:<9}{value}" for name, value in rows.items() if value)
    path, body = (
        ("/v1/chat/completions", '{"messages": [{"role": "user", "content": "Hello!"}]}')
        if tokenizer.has_chat_template
        else ("/v1/completions", '{"prompt": "Once upon a time", "max_tokens": 50}')
    )
    path, body = _OTHER_TRIES.get(info.purpose, (path, body))
    key = "    -H 'Authorization: Bearer YOUR-KEY' \\\n" if settings.needs_key else ""
    # Other commands find the default address without a flag.
    url = "" if address == "http://127.0.0.1:8000" else f" --url {address}"
    chats = f", chat here with `reprise run{url}`," if generates else ""
    return (
        f"\nReprise is ready. Press Ctrl-C to stop it.\n\n{table}\n\n"
        f"Open {address} in a browser{chats} or try it with\n\n"
        f"  curl {address}{path} \\\n"
        f"    -H 'Content-Type: application/json' \\\n{key}"
        f"    -d '{body}'\n"
    )


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
