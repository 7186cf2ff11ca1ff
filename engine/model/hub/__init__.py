"""Models from the hub: the cache that huggingface_hub keeps, and downloads into it."""
