"""The metrics of GET /metrics: their definitions, the counters, and the values read at each scrape.

The engine's thread never writes here.
"""
