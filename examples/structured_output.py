"""Get the answer as an object of a pydantic class: the model can only write JSON of that form.

pip install openai
"""

import os
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=os.environ.get("BASE_URL", "http://127.0.0.1:8000") + "/v1", api_key="none")
model = client.models.list().data[0].id


class Person(BaseModel):
    """What the answer has to look like."""

    name: str
    title: Literal["sailor", "tailor", "baker"]
    level: int
    city: str


question = """Return the record of Ben as JSON.

{"name": "Ada", "title": "sailor", "level": 12, "city": "Metom"}
{"name": "Ben", "title": "tailor", "level": 7, "city": "Berex"}"""
answer = client.chat.completions.parse(
    model=model,
    messages=[{"role": "user", "content": question}],
    response_format=Person,
    # A limit, because a small model may never end a string.
    max_tokens=200,
)
person = answer.choices[0].message.parsed
print(person.name, "is a", person.title, "in", person.city)
print(repr(person))
