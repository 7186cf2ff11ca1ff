"""The HTTP layer around the routes: access, limits, connections, error format, request ids, OpenAPI document.

Nothing here knows what a request asks for or what its response looks like.
"""
