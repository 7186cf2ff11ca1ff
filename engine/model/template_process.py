"""The process that renders chat templates for templates.py. A script: it imports nothing of Reprise.

Reads calls from its input and writes what came of them to its output, each as four bytes of length and JSON.
Arguments: transformers' folder, and how many bytes of memory it may use.
"""

import contextlib
import importlib
import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

Render = Callable[..., tuple[list[str], list[Any]]]

LONGEST_COMPLAINT = 2000
_LATER_IMPORTS = "{{ strftime_now('%d %B %Y') }}{{ messages | tojson(indent=2) }}{{ raise_exception('a') }}"


def load_render(transformers: Path) -> Render:
    """transformers' function, without the rest of it where that works: it takes seconds to import."""
    name = "transformers.utils.chat_template_utils"
    for package, folder in (("transformers", transformers), ("transformers.utils", transformers / "utils")):
        sys.modules[package] = ModuleType(package)
        sys.modules[package].__path__ = [str(folder)]
    try:
        module = importlib.import_module(name)
    except ImportError:
        for loaded in [key for key in sys.modules if key.partition(".")[0] == "transformers"]:
            del sys.modules[loaded]
        module = importlib.import_module(name)
    render: Render = module.render_jinja_template
    return render


def limit(memory_bytes: int) -> None:
    """Give up what rendering does not need: much memory, files, connections and other processes."""
    for kind, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        # Not every system knows every limit.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (most, most))


def serve(render: Render, calls: BinaryIO, answers: BinaryIO) -> None:
    """Answer calls until there are no more."""
    while length := calls.read(4):
        call = json.loads(calls.read(int.from_bytes(length, "little")))
        write(answers, answer(render, call))


def answer(render: Render, call: dict[str, Any]) -> dict[str, Any]:
    """What came of a call: what was rendered, or what the template complains of."""
    try:
        rendered, indices = render(**call)
    except MemoryError:
        return {"complaint": "it took too much memory"}
    # A template is a program that comes with the model: it may raise anything.
    except Exception as fault:
        return {"complaint": (str(fault) or type(fault).__name__)[:LONGEST_COMPLAINT]}
    return {"rendered": rendered, "indices": indices}


def write(answers: BinaryIO, told: dict[str, Any]) -> None:
    """Write one answer."""
    body = json.dumps(told).encode()
    answers.write(len(body).to_bytes(4, "little") + body)
    answers.flush()


def main(transformers: str, memory_bytes: str) -> None:
    """Say that it is ready, and serve."""
    render = load_render(Path(transformers))
    # What is imported at first use must be there before no file can be opened.
    answer(render, {"conversations": [[{"role": "user"}]], "chat_template": _LATER_IMPORTS})
    limit(int(memory_bytes))
    write(sys.stdout.buffer, {})
    serve(render, sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main(*sys.argv[1:])
