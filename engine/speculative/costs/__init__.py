"""Costs of steps, learned while serving, and how much drafting may cost a sequence."""
