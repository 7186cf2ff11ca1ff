"""What a language model of mlx-lm needs to read images, while the graph of a forward pass is built."""
