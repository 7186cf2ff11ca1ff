"""The data that the server and the engine exchange: plain, frozen, and without MLX."""
