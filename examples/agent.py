"""Run an agent with OpenAI's Agents SDK, which calls tools until the model answers in words.

pip install openai-agents
"""

import os

from agents import (
    Agent,
    AsyncOpenAI,
    Runner,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import OpenAI

url = os.environ.get("BASE_URL", "http://127.0.0.1:8000") + "/v1"
model = OpenAI(base_url=url, api_key="none").models.list().data[0].id
set_default_openai_client(AsyncOpenAI(base_url=url, api_key="none"))
# The SDK would send a record of each run to OpenAI.
set_tracing_disabled(True)


@function_tool
def find_lantern(color: str, size: int) -> str:
    """Find the lantern."""
    print("find_lantern:", color, size)
    return '{"price": 84}'


@function_tool
def paint_lantern(color: str) -> str:
    """Paint the lantern."""
    print("paint_lantern:", color)
    return '{"price": 12}'


agent = Agent(name="Keeper", instructions="Be brief.", model=model, tools=[find_lantern, paint_lantern])
result = Runner.run_sync(agent, "Find the lantern with color red and size 12.")
print(result.final_output)

# The same conversation goes on.
messages = [*result.to_input_list(), {"role": "user", "content": "Paint the lantern with color blue."}]
print(Runner.run_sync(agent, messages).final_output)
