"""Make views of a conversation's texts: each text as an answer would write it, for drafters to copy from."""
