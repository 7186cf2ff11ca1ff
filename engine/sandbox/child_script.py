"""Run foreign code that may loop or fill memory: the script of the processes of child_process.py.

It reads calls from stdin and writes replies to stdout. Arguments: the job (a key of JOBS), the maximum number
of bytes of memory, and the maximum number of seconds of CPU time for each call.
"""

import binascii
import contextlib
import importlib
import importlib.util
import json
import os
import re
import resource
import signal
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import IO, Any

Message = dict[str, Any]
Handle = Callable[[Message], Message]

NICENESS = 10
"""How far a process gives way to the engine's threads."""
_NAMED_TOKEN = re.compile(r"<\[\^?[0-9][0-9, -]*\]>")
"""A token of the model's vocabulary by its id, in a grammar."""
_LATER_IMPORTS = "{{ strftime_now('%d %B %Y') }}{{ messages | tojson(indent=2) }}{{ raise_exception('a') }}"


def encode_message(message: Message) -> bytes:
    """Encode a call or a reply: two lengths of four bytes, JSON, then the bytes of "attached".

    Values that JSON cannot represent become the text that transformers would put into a prompt.
    """
    attached: bytes = message.get("attached", b"")
    fields = {name: value for name, value in message.items() if name != "attached"}
    body = json.dumps(fields, default=lambda value: f"<{type(value).__name__}>").encode()
    return struct.pack("<II", len(body), len(attached)) + body + attached


def read_message(source: IO[bytes], max_bytes: int = 2**32) -> Message:
    """Decode what encode_message() made. Raises EOFError if cut off, and ValueError if too long."""

    def read(num_bytes: int) -> bytes:
        if num_bytes > max_bytes:
            raise ValueError
        found = source.read(num_bytes)
        if len(found) < num_bytes:
            raise EOFError
        return found

    num_bytes, num_attached = struct.unpack("<II", read(8))
    message: Message = json.loads(read(num_bytes))
    if num_attached:
        message["attached"] = read(num_attached)
    return message


def handle_templates() -> Handle:
    """Return a function that renders conversations. A call has the arguments of render_jinja_template()."""
    render = _load_render()

    def handle(call: Message) -> Message:
        try:
            rendered, indices = render(**call)
        except MemoryError:
            return {"complaint": "it took too much memory"}
        # A template is a program that comes with the model: it may raise anything.
        except Exception as fault:
            return {"complaint": (str(fault) or type(fault).__name__)[:2000]}
        return {"rendered": rendered, "indices": indices}

    # Import what transformers imports at first use: later no file can be opened.
    handle({"conversations": [[{"role": "user"}]], "chat_template": _LATER_IMPORTS})
    return handle


def handle_schemas() -> Handle:
    """Return a function that validates JSON. A call has text and schema, both as JSON."""
    validators: Any = importlib.import_module("jsonschema.validators")
    registry = importlib.import_module("referencing").Registry()

    def handle(call: Message) -> Message:
        try:
            schema = json.loads(call["schema"])
            kind = validators.validator_for(schema, validators.Draft202012Validator)
            # With an empty registry nothing is fetched.
            validator = kind(schema, registry=registry, format_checker=kind.FORMAT_CHECKER)
            try:
                value = json.loads(call["text"])
            except ValueError:
                return {"valid": False}
            return {"valid": bool(validator.is_valid(value))}
        # A schema comes from a client, and may be wrong in any way.
        except Exception:
            return {"valid": None}

    # Import what the library imports at first use: later no file can be opened.
    handle({"schema": '{"$ref": "#/$defs/a", "$defs": {"a": {"format": "date"}}}', "text": '"a"'})
    return handle


def handle_grammars() -> Handle:
    """Return a function that compiles grammars. A call has text, in llguidance's format, and limits."""
    library: Any = importlib.import_module("llguidance")
    # A vocabulary matters little to what compiling takes, and this one is made in no time.
    vocabulary = library.LLTokenizer("byte")

    def handle(call: Message) -> Message:
        limits = library.LLParserLimits(**call["limits"])
        library.LLMatcher(vocabulary, _NAMED_TOKEN.sub("<[97]>", call["text"]), log_level=0, limits=limits)
        return {}

    return handle


class FileError(ValueError):
    """A client's file cannot be shown; the message is a phrase that follows the file's name."""


MAX_CHARACTERS = 2**22
"""The most characters of all documents of a request: what a million tokens have."""


def check_length(num_characters: int) -> None:
    """Raise FileError for more than MAX_CHARACTERS."""
    if num_characters > MAX_CHARACTERS:
        raise FileError(
            f"has too much text: all documents may have {MAX_CHARACTERS:,} characters; send a part"
        )


def from_base64(text: bytes) -> bytes:
    """Decode base64 of either alphabet. Raises FileError."""
    text = text.translate(None, b" \r\n\t").translate(bytes.maketrans(b"-_", b"+/")).rstrip(b"=")
    try:
        return binascii.a2b_base64(text + b"=" * (-len(text) % 4), strict_mode=True)
    except binascii.Error as fault:
        raise FileError(f"is not valid base64 ({fault})") from fault


def handle_files(module: str) -> Handle:
    """Return a function that reads files; for its calls see decode() or extract() in the module."""
    sys.path.insert(0, str(Path(__file__).parents[3]))
    handler: Handle = importlib.import_module(f"reprise.engine.sandbox.{module}").make_handler()
    return handler


JOBS: dict[str, Callable[[], Handle]] = {
    "templates": handle_templates,
    "schemas": handle_schemas,
    "grammars": handle_grammars,
    "images": partial(handle_files, "image_job"),
    "documents": partial(handle_files, "document_job"),
}


def main(job: str, memory_bytes: str, cpu_limit_s: str) -> None:
    """Report readiness with an empty reply, then reply to calls until the input ends."""
    if job != "templates":
        os.nice(NICENESS)
    handle = JOBS[job]()
    limits = {resource.RLIMIT_AS: int(memory_bytes)}
    # No job needs files, connections or other processes.
    limits |= dict.fromkeys((resource.RLIMIT_NPROC, resource.RLIMIT_CORE, resource.RLIMIT_NOFILE), 0)
    for kind, maximum in limits.items():
        # Not every system supports every limit.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (maximum, maximum))
    reply: Message = {}
    with contextlib.suppress(EOFError):
        while True:
            sys.stdout.buffer.write(encode_message(reply))
            sys.stdout.buffer.flush()
            signal.setitimer(signal.ITIMER_PROF, 0)
            # It may hold an image, which would stay in memory with the next.
            reply.clear()
            call = read_message(sys.stdin.buffer)
            # Without a handler the signal ends the process, even within a regular expression.
            signal.setitimer(signal.ITIMER_PROF, float(cpu_limit_s))
            reply = handle(call)


def _load_render() -> Any:
    """Import transformers' render function, if possible without the rest, which takes seconds."""
    found = importlib.util.find_spec("transformers")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent
    for package, home in (("transformers", folder), ("transformers.utils", folder / "utils")):
        # Its modules can be imported without running the package itself.
        sys.modules[package] = ModuleType(package)
        sys.modules[package].__path__ = [str(home)]
    name = "transformers.utils.chat_template_utils"
    try:
        module = importlib.import_module(name)
    except ImportError:
        for loaded in [key for key in sys.modules if key.partition(".")[0] == "transformers"]:
            del sys.modules[loaded]
        module = importlib.import_module(name)
    return module.render_jinja_template


if __name__ == "__main__":
    main(*sys.argv[1:])
