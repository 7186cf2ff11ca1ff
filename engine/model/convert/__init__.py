"""Make a folder that mlx-lm loads: of a GGUF file, a model on the hub, or a Hugging Face folder."""
