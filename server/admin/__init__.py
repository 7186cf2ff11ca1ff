"""The routes for whoever operates the server: its models, its state and what it learned."""
