"""Run a model in this process, without a server: python in_process.py [MODEL]. docs/python.md has more.

MODEL is a folder or a name on the hub. Without it, it is the bundled demo model.

pip install .    (in a clone of Reprise)
"""

import sys

from reprise import LLM, SamplingParams

passage = "Clekek met Migon near the mill. Bisti painted the boat in the harbor."

with LLM(sys.argv[1] if sys.argv[1:] else None) as llm:
    chat = [{"role": "user", "content": "Who are you?"}]
    with llm.stream(chat, SamplingParams(max_tokens=200)) as stream:
        for delta in stream:
            print(delta.text, end="", flush=True)
    print()

    # A list of chats is one batch.
    questions = ["Quote the sentence about the boat.", "Quote the sentence about the mill."]
    chats = [[{"role": "user", "content": f"{question}\n\n{passage}"}] for question in questions]
    for question, answer in zip(questions, llm.chat(chats, SamplingParams(max_tokens=200)), strict=True):
        print(question, answer.text)
        print(len(answer.token_ids), "tokens in", answer.timings["forwards"], "forward passes")
