"""The loaded model: weights, tokenizer, vocabulary, chat template, markers, and detokenizing.

Nothing here keeps the state of a batched request or runs a step.
"""
