"""One HTTP request's way through the engine: prompt, engine requests, events, response or stream.

Nothing here is specific to one endpoint's fields or response format.
"""
