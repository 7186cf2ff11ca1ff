"""Drafters: propose tokens from text seen earlier, for the target model to verify in one forward pass."""
