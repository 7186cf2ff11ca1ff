"""Generate docs/api.md and docs/metrics.md from the code: `python -m reprise.server.reference`.

Nothing here runs in the server.
"""
