"""The sequences that decode together, their rows, and what the device computes for them."""
