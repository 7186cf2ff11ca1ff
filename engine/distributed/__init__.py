"""One model over several machines: rank 0 runs the engine, the others repeat its calls on their shard.

Nothing here is imported where the model is on one machine.
"""
