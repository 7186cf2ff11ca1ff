"""The ranks of a group: where they are, how they meet, what they must have in common, and what they say."""
