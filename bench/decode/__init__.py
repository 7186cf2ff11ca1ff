"""`reprise bench decode`; the command is in run_decode.py."""

from bench.decode.run_decode import SUMMARY, add_arguments, run

__all__ = ["SUMMARY", "add_arguments", "run"]
