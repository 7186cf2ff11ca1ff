"""The one thread that owns MLX: admit, plan, forward, sample, commit, emit. README.md walks through it."""
