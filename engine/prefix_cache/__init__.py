"""The caches of earlier prompts and answers, in memory as a trie over tokens and on disk as files.

Nothing here decides what to look up or when to keep something; scheduler/prefix_lookup.py does that.
"""
