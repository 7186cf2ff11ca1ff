"""Render chat templates: the script that chat_templates.py runs in a process of its own.

It imports nothing of Reprise. It reads calls from stdin and writes replies to stdout. Each is four bytes of
length, then JSON. Arguments: transformers' folder, and the maximum number of bytes of memory.
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

MAX_COMPLAINT_CHARACTERS = 2000
_LATER_IMPORTS = "{{ strftime_now('%d %B %Y') }}{{ messages | tojson(indent=2) }}{{ raise_exception('a') }}"


def load_render(transformers: Path) -> Render:
    """Import transformers' render function, if possible without the rest, which takes seconds to import."""
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


def limit_resources(memory_bytes: int) -> None:
    """Limit memory, and forbid what rendering does not need: files, connections and other processes."""
    for kind, maximum in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        # Not every system supports every limit.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (maximum, maximum))


def serve(render: Render, calls: BinaryIO, replies: BinaryIO) -> None:
    """Reply to calls until the input ends."""
    while length := calls.read(4):
        call = json.loads(calls.read(int.from_bytes(length, "little")))
        write_reply(replies, make_reply(render, call))


def make_reply(render: Render, call: dict[str, Any]) -> dict[str, Any]:
    """Return the rendered conversations of a call, or the template's error as its complaint."""
    try:
        rendered, indices = render(**call)
    except MemoryError:
        return {"complaint": "it took too much memory"}
    # A template is a program that comes with the model: it may raise anything.
    except Exception as fault:
        return {"complaint": (str(fault) or type(fault).__name__)[:MAX_COMPLAINT_CHARACTERS]}
    return {"rendered": rendered, "indices": indices}


def write_reply(replies: BinaryIO, reply: dict[str, Any]) -> None:
    """Write one reply."""
    body = json.dumps(reply).encode()
    replies.write(len(body).to_bytes(4, "little") + body)
    replies.flush()


def main(transformers: str, memory_bytes: str) -> None:
    """Report readiness by an empty reply, then serve."""
    render = load_render(Path(transformers))
    # Import what transformers imports at first use: later no file can be opened.
    make_reply(render, {"conversations": [[{"role": "user"}]], "chat_template": _LATER_IMPORTS})
    limit_resources(int(memory_bytes))
    write_reply(sys.stdout.buffer, {})
    serve(render, sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main(*sys.argv[1:])
