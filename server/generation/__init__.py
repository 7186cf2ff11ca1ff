"""Run one HTTP request through the engine: prompt, engine requests, events, then a response or a stream.

Nothing here depends on one endpoint's fields or response format.
"""
