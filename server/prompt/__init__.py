"""Turn a request into its prompt's tokens, and texts for drafters to copy from."""
