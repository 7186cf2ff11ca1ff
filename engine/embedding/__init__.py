"""Models that embed texts or rank documents; each is loaded and served like any other model."""
