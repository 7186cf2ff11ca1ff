"""The HTTP side: requests in, typed requests to the engine, responses in the format of the client's API.

Nothing here imports MLX; the engine is known by engine_protocol.py and engine/request.py.
"""
