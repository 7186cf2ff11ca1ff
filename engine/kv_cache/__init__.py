"""Keys, values and recurrent state of the rows: one forward pass over all of them, and exact rollback.

Nothing here knows of requests, drafts or text; it sees token ids, lengths and arrays.
"""
