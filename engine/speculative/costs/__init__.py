"""Costs of steps, measured at load and while serving, and how much drafting may cost a sequence."""
