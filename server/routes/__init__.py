"""The routes, one module for each group of endpoints: parse the body, generate, choose a presenter.

Logic that several endpoints share is elsewhere.
"""
