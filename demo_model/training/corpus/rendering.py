"""Render a conversation as text, as demo_model/chat_template.jinja does, with its answers marked."""

import json

from reprise.demo_model.training.corpus.conversation import Conversation

TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
TOOLS_INTRODUCTION = "You can call these tools:"
SPECIAL_TOKENS = ["<|endoftext|>", TURN_START, TURN_END, "<tool_call>", "</tool_call>"]


def render(conversation: Conversation) -> list[tuple[str, bool]]:
    """Return the text in pieces, each with whether it is an answer. An answer includes its end of turn."""
    pieces: list[tuple[str, bool]] = []
    messages = conversation.messages
    if conversation.tools:
        system = ""
        if messages[0]["role"] == "system":
            system, messages = messages[0]["content"] + "\n\n", messages[1:]
        listed = "\n".join(json.dumps(tool) for tool in conversation.tools)
        pieces.append((f"{TURN_START}system\n{system}{TOOLS_INTRODUCTION}\n{listed}{TURN_END}\n", False))
    for message in messages:
        pieces.append((f"{TURN_START}{message['role']}\n", False))
        content = message["content"]
        for call in message.get("tool_calls", []):
            content += f"<tool_call>\n{json.dumps(call['function'])}\n</tool_call>"
        pieces.append((content + TURN_END, message["role"] == "assistant"))
        pieces.append(("\n", False))
    return pieces
