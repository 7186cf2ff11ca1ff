"""The HTTP layer around the routes: access, limits, connections, errors, request ids, OpenAPI document."""
