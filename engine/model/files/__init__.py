"""What the small files of a model's folder say, without its weights and without building the model."""
