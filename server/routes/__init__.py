"""One module for each group of endpoints: parse the body, call generation, choose the presenter.

Nothing here holds logic that two endpoints share.
"""
