"""Settings: one frozen, typed object, built from defaults, a file, the environment and flags."""
