"""The HTTP layer around the routes; server/README.md says in which order a request passes it."""
