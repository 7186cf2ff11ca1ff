"""The HTTP server: validate requests, submit them to the engine, answer in the format of the client's API.

Nothing here imports MLX: the server knows the engine by engine_protocol.py and engine/request.py alone.
"""
