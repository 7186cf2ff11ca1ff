"""Chat with Anthropic's client, and print the answer while the model writes it.

pip install anthropic
"""

import os

from anthropic import Anthropic

client = Anthropic(base_url=os.environ.get("BASE_URL", "http://127.0.0.1:8000"), api_key="none")
model = client.models.list().data[0].id

question = """Quote the sentence about the boat.

Clekek met Migon near the mill. Bisti painted the boat in the harbor. Migon has a lantern and a key."""
with client.messages.stream(
    model=model,
    system="Be brief.",
    messages=[{"role": "user", "content": question}],
    max_tokens=200,
) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
    answer = stream.get_final_message()
print()
print(answer.usage.output_tokens, "tokens, then", answer.stop_reason)
