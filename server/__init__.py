"""The HTTP server: validate requests, submit them to the engine, answer in the format of the client's API.

engine_types.py has the engine's classes as types. Importing the server does not import MLX: from the
engine it takes only request.py, time_by_station.py and text/markers.py, and run.py imports the rest late.
"""
