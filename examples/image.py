"""Ask about a picture: python image.py FILE. Without a file, it is a screenshot of Reprise's page.

This needs a model that sees: reprise serve mlx-community/Qwen3-VL-4B-Instruct-4bit

pip install openai
"""

import base64
import mimetypes
import os
import sys
from pathlib import Path

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("BASE_URL", "http://127.0.0.1:8000") + "/v1", api_key="none")
models = [model.id for model in client.models.list() if "image" in model.modalities["input"]]
if not models:
    sys.exit("The served model cannot see. Try: reprise serve mlx-community/Qwen3-VL-4B-Instruct-4bit")

file = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1] / "docs" / "page-light.png"
data = base64.b64encode(file.read_bytes()).decode()
url = f"data:{mimetypes.guess_type(file)[0]};base64,{data}"
answer = client.chat.completions.create(
    model=models[0],
    messages=[
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "text", "text": "What is in this picture?"},
            ],
        }
    ],
    max_tokens=300,
)
print(answer.choices[0].message.content)
print("The picture took", answer.usage.prompt_tokens_details.image_tokens, "tokens of the prompt")
