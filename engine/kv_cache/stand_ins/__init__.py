"""Stand in for functions of mlx-lm that take rows of one length, or hide what state is made from."""
