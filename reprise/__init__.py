"""Reprise: an inference server for MLX. Its packages are the folders at the repository's root, by links."""
