"""The loaded model: weights, configuration, the findings of probes, and the settings that come with it.

Nothing here knows about batches or runs a step.
"""
