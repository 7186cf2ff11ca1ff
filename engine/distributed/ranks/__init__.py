"""The ranks of a group: their places, how they meet, facts that they must share, and their messages."""
