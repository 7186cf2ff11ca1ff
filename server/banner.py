"""What a person sees while the server starts: a progress bar, then the banner."""

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from config.settings import Settings
from engine.request import ModelEntry, ModelInfo, Purpose
from engine.text.markers import Markers

SHOW_PROGRESS_AFTER_S = 0.5

EXACT_NOT_TRIED = "widths not tried; --exact and `reprise verify` find them"
"""What the banner says about exact widths without --exact."""


class LoadingBar:
    """A progress bar on standard error, shown only on a terminal and only if starting takes a while.

    console: replaces standard error. show_after_s: seconds until the bar is shown.
    """

    def __init__(self, console: Console | None = None, show_after_s: float = SHOW_PROGRESS_AFTER_S) -> None:
        console = console or Console(stderr=True)
        self._is_watched = console.is_terminal
        self._show_after_s = show_after_s
        self._progress = Progress(
            # The task may name a model, and Rich could mistake a part of that name for markup.
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
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
        if not self._is_watched or time.perf_counter() - self._start_s < self._show_after_s:
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
        self._progress.stop()


NAMED_HEADS = {"mtp": "an MTP head", "dflash": "a DFlash drafter"}


def describe_drafts(settings: Settings, can_draft: bool, info: ModelInfo | None = None) -> str:
    """Describe the source of drafts and of the measured step costs.

    can_draft: whether drafting works for the model at all. info: of the loaded model.
    """
    if not can_draft:
        return "off, this model does not support drafting"
    model = f" with {settings.draft_model}" if settings.draft_model else ""
    if info and info.head:
        model = f" with {NAMED_HEADS[info.head]}{model and f' ({settings.draft_model})'}"
    if info and info.draft_strategy not in (None, "none"):
        model += f" (translated: {info.draft_strategy})"
    file = settings.calibration_file
    costs = f"step costs from {_from_home(file)}" if file else "step costs measured at every start"
    return f"{settings.draft_type}{model}, {costs}"


def _from_home(file: str) -> str:
    """Return a path as people write it, with ~ for the home folder."""
    home = str(Path.home())
    return f"~{file.removeprefix(home)}" if file.startswith(f"{home}/") else file


def describe_decoding(settings: Settings) -> str:
    """Describe how requests that leave it out are decoded, if not plainly; else empty."""
    if settings.wedlm_decoding == "off":
        return ""
    threshold = settings.wedlm_entropy_threshold
    how = "one by one" if threshold is None else f"entropy below {threshold:g}"
    anchor = ", anchored" if settings.wedlm_anchor else ""
    window = f"window of {settings.wedlm_window_size}"
    return f"streaming ({window}, {how}{anchor}): answers may differ from those of plain decoding"


def describe_sampling(settings: Settings, info: ModelInfo) -> str:
    """Describe the sampling of requests that leave it out."""
    known = info.sampling_defaults.known if settings.sampling_defaults == "model" else {}
    shown = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in known.items())
    return f"{shown} (generation_config.json)" if shown else "OpenAI's defaults"


def describe_tools(markers: Markers) -> str:
    """Describe how tools are shown and called, if not in the model's own format; else empty."""
    return "generic format: the chat template has none that is known" if markers.is_generic else ""


MAX_NAMES = 8
"""Names of other models that the banner shows."""


_FOR: dict[Purpose, str] = {"generate": "", "embed": " for embeddings", "rerank": " for ranking"}


def describe_models(others: Sequence[ModelEntry], settings: Settings) -> str:
    """Describe the models that requests may ask for besides the one that the server started with."""
    names = [f"{one.name}{_FOR[one.purpose]}" for one in others if not one.fault]
    more = [f"and {len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else []
    how = "loaded when a request asks for them" if settings.allow_load else "loaded with --allow-load only"
    return f"{', '.join([*names[:MAX_NAMES], *more])} ({how})" if names else "none found"


_OTHER_TRIES: dict[Purpose, tuple[str, str]] = {
    "embed": ("/v1/embeddings", '{"input": "Hello!"}'),
    "rerank": ("/v1/rerank", '{"query": "Where is Rome?", "documents": ["In Italy.", "Once upon a time"]}'),
}
"""Path and body of the command to try, for models that generate nothing."""


def banner(
    info: ModelInfo,
    names: tuple[str, ...],
    address: str,
    drafts: str,
    has_chat_template: bool,
    needs_key: bool,
    sampling: str = "OpenAI's defaults",
    decoding: str = "",
    others: str = "",
    tools: str = "",
) -> str:
    """Return the text that says what is served and where, with a curl command to try it.

    drafts: as describe_drafts() returns it.
    needs_key: whether the curl command needs an API key, for which it has a placeholder.
    sampling: as describe_sampling() returns it. decoding: as describe_decoding() does.
    others: as describe_models() does; empty if there is one model. tools: as describe_tools() does.
    """
    kind = f"{info.architecture}, {_parameters(info.num_parameters)}, {info.dtype}"
    machine = f", {_bytes(info.memory_bytes)} in this machine" if info.memory_bytes else ""
    rows = {
        "model": f"{', '.join(names)} ({kind})",
        "others": others,
        "device": info.device,
        "memory": f"{_bytes(info.weight_bytes)} for weights{machine}",
        **{f"rank {rank}": held for rank, held in enumerate(info.ranks)},
        "context": f"{info.context_tokens} tokens",
        "batch": info.batching,
        **(
            {"vectors": f"{info.embedding.dimensions} dimensions, {info.embedding.recipe.describe()}"}
            if info.embedding
            else {
                "sampling": sampling,
                "decoding": decoding,
                "tools": tools,
                "drafts": drafts,
                "not used": info.head_fault,
                "exact": info.exact or EXACT_NOT_TRIED,
            }
        ),
        "loaded": f"in {info.loaded_s:.1f} s",
        "address": address,
    }
    table = "\n".join(f"  {name:<9}{value}" for name, value in rows.items() if value)
    path, body = (
        ("/v1/chat/completions", '{"messages": [{"role": "user", "content": "Hello!"}]}')
        if has_chat_template
        else ("/v1/completions", '{"prompt": "Once upon a time", "max_tokens": 50}')
    )
    path, body = _OTHER_TRIES.get(info.purpose, (path, body))
    key = "    -H 'Authorization: Bearer YOUR-KEY' \\\n" if needs_key else ""
    return (
        f"\nReprise is ready. Press Ctrl-C to stop it.\n\n{table}\n\n"
        f"Open {address} in a browser, or try it here:\n\n"
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
