"""Tokens to text and back: the tokenizer, its vocabulary in bytes, markers, and detokenizing.

Nothing here knows the model's weights, batches or steps.
"""
