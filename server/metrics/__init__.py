"""What GET /metrics reports: the list of metrics, their counters, and what is read at each scrape.

Nothing here is written from the engine's thread.
"""
