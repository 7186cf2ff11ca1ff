"""The HTTP side: requests in, typed requests to the engine, answers in OpenAI's shape out. No MLX here."""
