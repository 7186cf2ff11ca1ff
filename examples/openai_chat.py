"""Chat with OpenAI's client: a question, then another one in the same conversation.

pip install openai
"""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("BASE_URL", "http://127.0.0.1:8000") + "/v1", api_key="none")
model = client.models.list().data[0].id

question = """Return the record of Ada as JSON.

{"name": "Ada", "title": "sailor", "level": 12, "city": "Metom"}
{"name": "Ben", "title": "tailor", "level": 7, "city": "Berex"}"""
messages = [{"role": "user", "content": question}]
answer = client.chat.completions.create(model=model, messages=messages, max_tokens=200)
print(answer.choices[0].message.content)

# Each request has the whole conversation. The server computes only what is new of it.
messages.append({"role": "assistant", "content": answer.choices[0].message.content})
messages.append({"role": "user", "content": "Return the record of Ben as JSON."})
answer = client.chat.completions.create(model=model, messages=messages, max_tokens=200)
print(answer.choices[0].message.content)

usage = answer.usage
print(usage.prompt_tokens_details.cached_tokens, "of", usage.prompt_tokens, "prompt tokens were cached")
