"""Settings: one frozen, typed object, put together from defaults, file, environment and flags."""
