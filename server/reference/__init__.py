"""docs/api.md and docs/metrics.md, written from the code: `python -m server.reference`.

Nothing here runs while the server serves.
"""
