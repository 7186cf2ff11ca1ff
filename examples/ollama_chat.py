"""Chat with Ollama's client: an answer while the model writes it, then one as JSON.

pip install ollama
"""

import os

from ollama import Client

client = Client(os.environ.get("BASE_URL", "http://127.0.0.1:8000"))
model = client.list().models[0].model

for part in client.chat(model, [{"role": "user", "content": "Who are you?"}], stream=True):
    print(part.message.content, end="", flush=True)
print()
print(part.eval_count, "tokens")

schema = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "level": {"type": "integer"}},
    "required": ["name", "level"],
}
question = "Return a JSON object for the schema. The values are: name Ada and level 12."
answer = client.chat(model, [{"role": "user", "content": question}], format=schema)
print(answer.message.content)
