"""The loaded model: weights, tokenizer, vocabulary, chat template, markers, and detokenizing.

Nothing here knows about batches or runs a step.
"""
