"""The rows' keys, values and recurrent state: one forward pass over all rows, and exact rollback.

Nothing here knows about requests, drafts or text, only about token ids, lengths and arrays.
"""
