"""Keys, values and recurrent state of the rows that decode: one forward pass over all rows, and exact rollback.

Nothing here knows of requests, drafts or text; it sees token ids, lengths and arrays.
"""
