"""Stand in for functions of mlx-lm's models that cannot take rows of different lengths themselves."""
