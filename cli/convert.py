"""`reprise convert`: convert a GGUF file, a model on the hub, or another folder into a folder to serve."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from reprise.cli.arguments import failing
from reprise.cli.output import format_bytes

Tell = Callable[[str, float], None]
"""Called with the current task and its share done."""

HELP = "Convert a GGUF file, a model on the hub or a folder of one into a folder that can be served."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the source, the folder and the weights' type and bits to the parser."""
    parser.add_argument(
        "source", metavar="SOURCE",
        help="A GGUF file, as LM Studio and Ollama keep them (llama, qwen2, qwen3 and gemma3); a folder in "
        "Hugging Face's format; a name on the hub; or smollm2.",
    )  # fmt: skip
    parser.add_argument("folder", metavar="DIR", help="Folder to make.")
    parser.add_argument(
        "--bits", type=int, choices=(4, 8),
        help="Quantise to so many bits. Weights of a GGUF file in Q4_0, Q4_1, Q4_K, Q5_K or Q8_0 stay as "
        "they are, also without this, unless they have more bits. Default: what the file has quantised in "
        "another way gets the next number of bits that MLX has above its own; all else is not quantised.",
    )  # fmt: skip
    parser.add_argument(
        "--group-size", type=int, choices=(32, 64, 128), default=64,
        help="Weights with one scale, for --bits. Default: 64.",
    )  # fmt: skip
    parser.add_argument(
        "--dtype", choices=("float16", "bfloat16", "float32"),
        help="Type of what is not quantised, and of scales. Default: the source's; for quantised weights of "
        "a GGUF file float16 if they stay so, else bfloat16, and on the CPU float32, which is much faster "
        "there.",
    )  # fmt: skip
    parser.add_argument("--dequantize", action="store_true", help="Write no quantised weights.")
    parser.add_argument(
        "--adapter", metavar="FOLDER", help="LoRA adapter in mlx-lm's format to fuse with it."
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Convert the model; return 0. Raises FailedError if it cannot be converted; then nothing is written."""
    # Imported here so that other commands do not load the engine.
    from reprise.engine.checkpoint import inspect_checkpoint
    from reprise.engine.model.convert.conversion import convert, sampling_of, source_of
    from reprise.engine.model.convert.sources import ConvertError, Options

    options = Options(
        bits=arguments.bits,
        group_size=arguments.group_size,
        dtype=arguments.dtype,
        dequantize=arguments.dequantize,
        adapter=arguments.adapter,
        sampling=sampling_of(arguments.source),
    )
    folder = Path(arguments.folder).expanduser()
    with (
        failing(ConvertError),
        source_of(arguments.source, progress_bar) as source,
        progress_bar(f"converting {arguments.source}") as report,
    ):
        sizes = convert(source, folder, options, report)
    if note := inspect_checkpoint(str(folder)).weights_note:
        print(f"reprise: {note}", file=sys.stderr)
    if sizes.was_seeing:
        print("reprise: the new model reads text only: what sees images was left out", file=sys.stderr)
    print(folder)
    told = f"{format_bytes(sizes.before)} of weights became {format_bytes(sizes.after)}"
    print(f"reprise: {told}", file=sys.stderr)
    print(f"reprise: serve it with: reprise serve {folder}", file=sys.stderr)
    return 0


@contextmanager
def progress_bar(name: str, tell: Tell = lambda *_: None) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar of bytes on the terminal; yield its callback. tell: called with the same values."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    print(f"reprise: {name}", file=sys.stderr)
    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        tell(name, 0.0)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            tell(name, done / total)

        yield report
