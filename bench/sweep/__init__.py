"""`reprise bench sweep`: measure the effect of each drafting setting, to choose defaults by.

The model answers every chat once, plainly. These answers are then replayed under each setting: the engine's
own drafters, gate and slowdown budget decode them again, step by step, without a model, with step costs
measured before.
"""
