"""Read the small files of a model's folder, without reading weights or building the model."""
