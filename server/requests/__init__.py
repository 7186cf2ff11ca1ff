"""The request bodies of the OpenAI endpoints and of /tokenize: every field with its type and limits.

Nothing here talks to the engine or builds a response.
"""
