"""Convert a GGUF file, a model on the hub, or a Hugging Face folder into a folder that mlx-lm loads."""
