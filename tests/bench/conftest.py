"""A model of a few kilobytes, and a server with scripted answers on a real port."""

import asyncio
import json
import shutil
import socket
import threading
from collections import deque
from contextlib import contextmanager

import mlx.core as mx
import pytest
import uvicorn
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from reprise.engine.model.loading import load_tokenizer

TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHAPE = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


def make_model(folder, vocab_size):
    """Write random weights and a small byte-level BPE tokenizer; most words are several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat and the other mother walk along the water wall"] * 4, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    shape = SHAPE | {"vocab_size": tokenizer.get_vocab_size(), "eos_token_id": 1}
    (folder / "config.json").write_text(json.dumps(shape))
    mx.random.seed(0)
    weights = dict(tree_flatten(llama.Model(llama.ModelArgs.from_dict(shape)).parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """Make a tiny model."""
    return make_model(tmp_path_factory.mktemp("model"), 320)


@pytest.fixture(scope="session")
def other_model_folder(tmp_path_factory):
    """Make another tiny model, with a different vocabulary."""
    return make_model(tmp_path_factory.mktemp("other"), 280)


@pytest.fixture
def wedlm_folder(model_folder, tmp_path):
    """Make a tiny WeDLM model, whose masks predict at random."""
    folder = shutil.copytree(model_folder, tmp_path / "wedlm")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "wedlm", "mask_token_id": config["vocab_size"] - 1}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def tokenizer(model_folder):
    return load_tokenizer(model_folder)


def frame(text=None, finish_reason=None, **fields):
    """Return a chunk of a chat stream, as the bytes of one event."""
    choices = [{"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish_reason}]
    return b"data: " + json.dumps({"choices": choices} | fields).encode() + b"\n\n"


def usage(completion_tokens, prompt_tokens=64, cached_tokens=0):
    """Return the chunk with the usage of a stream."""
    counts = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
    return b"data: " + json.dumps({"choices": [], "usage": counts}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


class ScriptedServer:
    """Answers each chat with the next script, (status, parts of the body); the last script is repeated.

    key: the API key that every request must send, if any.
    bodies: the requests so far. most_at_once: maximum number of requests open at the same time.
    wait_for: chats are answered only once this many are open. silent: chats are never answered.
    """

    def __init__(self):
        self.key = None
        self.scripts = deque()
        self.bodies = []
        self.open = self.most_at_once = 0
        self.wait_for = 1
        self.silent = False
        self.models = {"data": [{"id": "tiny"}, {"id": "other"}]}
        self.url = ""
        self._enough = None

    def play(self, *parts, status=200):
        self.scripts.append((status, parts))

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        given = dict(scope["headers"]).get(b"authorization")
        if self.key and given != f"Bearer {self.key}".encode():
            await self._send(send, 401, [b'{"error": {"message": "no such key"}}'])
            return
        if scope["path"] == "/v1/models":
            await self._send(send, 200, [json.dumps(self.models).encode()])
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.bodies.append(json.loads(body))
        if self.silent:
            await receive()  # until the client leaves
            return
        status, parts = self.scripts.popleft() if len(self.scripts) > 1 else self.scripts[0]
        self.open += 1
        self.most_at_once = max(self.most_at_once, self.open)
        await self._gather()
        self.open -= 1
        await self._send(send, status, parts)

    async def _gather(self):
        self._enough = self._enough or asyncio.Event()
        if self.open >= self.wait_for:
            self._enough.set()
        await self._enough.wait()

    async def _send(self, send, status, parts):
        kind = b"text/event-stream" if status == 200 else b"application/json"
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@contextmanager
def running(app):
    """Serve app on a free port, in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        app.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield app
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def server():
    with running(ScriptedServer()) as app:
        yield app


@pytest.fixture
def other_server():
    with running(ScriptedServer()) as app:
        yield app


@pytest.fixture
def full_answer():
    """Return a stream of four tokens, one per chunk, for a prompt of 64 tokens."""
    words = [frame(text) for text in ("one", " two", " three", " four")]
    return [frame(), *words, frame(finish_reason="length"), usage(4), DONE]


@pytest.fixture
def events():
    """Return functions that make stream events, for scripts."""

    class Events:
        pass

    made = Events()
    made.frame, made.usage, made.done = frame, usage, DONE
    return made
