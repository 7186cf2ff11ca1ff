"""docs/api.md, made from the routes and the models of their bodies: `python -m server.reference`."""
