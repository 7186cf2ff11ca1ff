"""OpenAI's Responses API: translate its requests to chats, format its answers and store them."""
