"""Measurements of running servers: workloads, rounds, reports."""
