"""Generated chats for benchmarks, the same everywhere for the same seed. VERSION changes when they change.

    chats = make_chats("json_rag", count=4, seed=1, count_tokens=count, prompt_tokens=600)
    chats[0].turns[0].messages, chats[0].turns[0].reference

Every turn with one right answer has it as its reference; the answers in the chat history are references too.
"""

from bench.workloads.chats import Chat, Message, Turn, Workload
from bench.workloads.making import ENGLISH, VERSION, WORKLOADS, lengths_of, make_chats
from bench.workloads.prompt_file import own_chats, read_prompts

__all__ = [
    "ENGLISH", "VERSION", "WORKLOADS", "Chat", "Message", "Turn", "Workload", "lengths_of", "make_chats",
    "own_chats", "read_prompts",
]  # fmt: skip
