"""Print an answer while the model writes it, then how much of it was drafted.

The answer repeats most of the prompt, so a forward pass of the model yields several tokens.

pip install openai
"""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("BASE_URL", "http://127.0.0.1:8000") + "/v1", api_key="none")
model = client.models.list().data[0].id

question = """Rename `find_lantern` to `paint_lantern` in this file. Show the whole file.

```python
lantern_size = 12

def find_lantern(old_map, red_key):
    wild_boat = old_map + 7
    return wild_boat * lantern_size

def open_door(old_key):
    new_key = old_key + 7
    return new_key - 4
```"""
stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": question}],
    max_tokens=400,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
print()

# The last chunk has no choices, but the counts. `timings` is Reprise's own field.
timings = chunk.timings
print(chunk.usage.completion_tokens, "tokens in", timings["forwards"], "forward passes")
print(timings["draft_n_accepted"], "of", timings["draft_n"], "drafted tokens were accepted")
for source, counts in timings["by_source"].items():
    print(f"  {source}: {counts}")
