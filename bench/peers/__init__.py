"""`reprise bench peers`: run the same chats on several servers and on mlx_lm's own loops, alternating."""
