"""Generate docs/api.md and docs/metrics.md from the code: `python -m server.reference`.

Nothing here runs in the server.
"""
