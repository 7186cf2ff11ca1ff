"""`reprise bench peers`: the same chats, greedily, to several servers and to mlx_lm's own loops, in turns."""
