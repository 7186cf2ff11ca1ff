"""Images: towers that turn them into features, and language models that read these among their tokens."""
