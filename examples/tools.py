"""Let the model call a Python function, send it the result, and repeat until it answers in words.

pip install openai
"""

import json
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("BASE_URL", "http://127.0.0.1:8000") + "/v1", api_key="none")
model = client.models.list().data[0].id


def find_lantern(color: str, size: int) -> dict[str, int]:
    """Look up the price of a lantern."""
    return {"price": {"red": 7, "blue": 9}[color] * size}


functions = {"find_lantern": find_lantern}
tools = [
    {
        "type": "function",
        "function": {
            "name": "find_lantern",
            "description": "Find the lantern.",
            # With `strict` the arguments always match the schema.
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"color": {"enum": ["red", "blue"]}, "size": {"type": "integer"}},
                "required": ["color", "size"],
                "additionalProperties": False,
            },
        },
    }
]

messages = [{"role": "user", "content": "Find the lantern with color red and size 12."}]
for _ in range(10):
    answer = client.chat.completions.create(model=model, messages=messages, tools=tools)
    message = answer.choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        print("call:", call.function.name, call.function.arguments)
        result = functions[call.function.name](**json.loads(call.function.arguments))
        print("result:", result)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
print(message.content)
