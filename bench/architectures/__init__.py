"""Random models of every architecture of the installed mlx-lm."""
