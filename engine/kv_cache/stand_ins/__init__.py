"""Stand in for functions of mlx-lm that take rows of one length only, or do not tell what state comes from."""
