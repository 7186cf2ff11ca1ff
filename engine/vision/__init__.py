"""Towers, which compute from an image the states of the tokens that stand for it."""
