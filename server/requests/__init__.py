"""The bodies of the OpenAI endpoints: every field, its type and its limits.

Nothing here talks to the engine or builds a response.
"""
