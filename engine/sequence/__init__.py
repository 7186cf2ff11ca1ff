"""A request on its way through the engine: its tokens and text, and how its answer and its steps end."""
