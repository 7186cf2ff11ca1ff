"""The routes for whoever operates the server: its models, its state, what it learned, and the page."""
