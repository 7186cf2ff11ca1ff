"""Replace functions of mlx-lm that take only rows of one length, or hide the inputs of recurrent state."""
