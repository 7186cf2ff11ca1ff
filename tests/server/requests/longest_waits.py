"""Measure how long the largest bodies keep other threads waiting while they are parsed and validated.

    python -m tests.server.requests.longest_waits

Prints for each body the processor time that it takes, and the longest wait of a thread that wants to run
every half a millisecond. The figures of docs/security.md are from here.
"""

import time
from contextlib import suppress

from reprise.server.errors import BadRequestError
from reprise.server.http.body import MAX_BODY_BYTES
from reprise.server.openai_api.responses.schemas import ResponsesRequest
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.completions import CompletionRequest
from reprise.server.requests.fields import Notes
from reprise.server.requests.json_body import MAX_CONTAINERS, MAX_MEMBERS, MAX_VALUES, parse_liberally
from tests.server.waits import measured_waits

ROOM = MAX_BODY_BYTES - 20
NUM_ROUNDS = 5
"""The best of them counts: a busy machine makes every thread wait."""
_MESSAGE = b'{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},'
BODIES = {
    "ASCII": b'{"prompt":"%b"}' % (b"a" * ROOM),
    "emoji": b'{"prompt":"%b"}' % ("\N{GRINNING FACE}".encode() * (ROOM // 4)),
    "ASCII and one emoji": b'{"prompt":"%b\xf0\x9f\x98\x80"}' % (b"a" * (ROOM - 4)),
    "escapes": b'{"prompt":"%b"}' % (b"\\n" * (ROOM // 2)),
    "commas in a string": b'{"prompt":"%b"}' % (b"," * ROOM),
    "white space": b'{"prompt":%b"a"}' % (b" " * ROOM),
    "numbers": b'{"prompt":[%b1]}' % (b"1000," * (MAX_VALUES - 2)),
    "strings": b'{"prompt":[%b""]}' % (b'"a1",' * (MAX_VALUES - 2)),
    "members": b'{"metadata":{%b}}' % b",".join(b'"key%d":1' % n for n in range(MAX_MEMBERS - 1)),
    "objects": b'{"messages":[%b{}]}' % (b"{}," * (MAX_CONTAINERS - 3)),
    "messages": b'{"messages":[%b{"role":"user","content":"a"}]}' % (_MESSAGE * 4095),
    "items": b'{"input":[%b{"role":"user","content":"a"}]}' % (b'{"role":"user","content":"a"},' * 8191),
}
MODELS = (CompletionRequest, ChatRequest, ResponsesRequest)


def main() -> None:
    """Measure every body with every model that may get it."""
    with measured_waits() as waits:
        for name, body in BODIES.items():
            longest: list[float] = []
            start_s = time.thread_time()
            for _ in range(NUM_ROUNDS):
                waits.clear()
                for model in MODELS:
                    with suppress(BadRequestError):
                        parse_liberally(body, model, {}, Notes())
                longest.append(max(waits, default=0))
            spent_ms = 1000 * (time.thread_time() - start_s) / len(MODELS) / NUM_ROUNDS
            size_mib, wait_ms = len(body) / 2**20, 1000 * min(longest)
            print(f"{name:20} {size_mib:5.1f} MiB {spent_ms:5.0f} ms, longest wait {wait_ms:3.0f} ms")


if __name__ == "__main__":
    main()
