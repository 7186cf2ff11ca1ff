"""`reprise bench sweep`: what each setting of drafting brings, so that defaults are chosen by figures.

Answers are taken from the model once, plainly, and then replayed under each setting: the engine's own
drafters, gate and ledger say them again, step by step, without a model, and steps cost what was measured.
"""
