"""OpenAI's API: chats, completions, responses, embeddings and rerank."""
