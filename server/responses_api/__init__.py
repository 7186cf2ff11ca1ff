"""OpenAI's Responses API: its bodies become chats, its answers are shown in its own shapes."""
