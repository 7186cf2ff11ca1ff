"""The HTTP server: validate requests, submit them to the engine, answer in the format of the client's API.

Importing it does not import MLX: run.py imports most of the engine late.
"""
