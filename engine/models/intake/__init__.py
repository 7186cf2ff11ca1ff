"""Whether a model takes a request: its state, its full queue, and when to come back."""
