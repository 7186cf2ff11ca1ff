"""`reprise bench decode`, see bench/decode/command.py."""

from bench.decode.run_decode import SUMMARY, add_arguments, run

__all__ = ["SUMMARY", "add_arguments", "run"]
