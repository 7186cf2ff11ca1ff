"""Models that make vectors of texts, or rank documents; each has a place in the pool like any other model."""
