"""What the next step does: which requests run, how much of their prompts is fed, and whether drafts are verified.

Nothing here runs a forward pass of the target model over the batch; batch.py does that.
"""
