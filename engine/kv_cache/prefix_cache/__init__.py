"""The prefix cache: keys, values and states of earlier texts, in memory (trie.py) and on disk."""
