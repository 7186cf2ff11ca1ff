"""The HTTP layer around the routes: access, limits, connections, error format, request ids, OpenAPI document.

Nothing here depends on an endpoint's request or response fields.
"""
