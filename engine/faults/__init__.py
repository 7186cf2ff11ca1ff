"""Handle steps that fail or stall: end the request at fault, restart the others, report the stall.

Nothing here runs while steps succeed, except the watchdog's clock.
"""
