"""What every architecture of the installed mlx-lm gets here, found by trying tiny random models."""
