"""Let a language model of mlx-lm read images, while the graph of a forward pass is built."""
