"""The metrics of GET /metrics, which the engine's thread never writes."""
