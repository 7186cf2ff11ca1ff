"""The endpoints that llama-server has but OpenAI lacks."""
