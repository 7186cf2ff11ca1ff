"""Split the model's output into parts, assign tokens to them, and check the answer against its schemas."""
