"""Views of a conversation's texts: the same text as the answer would have it, for drafters to copy from."""
