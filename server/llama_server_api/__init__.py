"""The endpoints that llama-server has and OpenAI has not."""
