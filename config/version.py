"""Name the version in code: it is known without an installation, and pyproject.toml reads it."""

VERSION = "0.2.0.dev0"

DISTRIBUTION = "reprise-mlx"
"""Name on package indexes, where `reprise` is another project."""
