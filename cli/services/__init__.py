"""Let the system's own supervisor keep a server running: launchd on macOS, systemd on Linux."""
