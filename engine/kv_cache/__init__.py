"""The rows' keys, values and recurrent state: one forward pass over all rows, and exact rollback.

Nothing here knows about requests, drafts or text: the modules see token ids, lengths and arrays.
"""
