"""One module for each group of endpoints."""
